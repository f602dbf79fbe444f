// Alerts on what did not go well, and on what did not happen. The last is asked of the log, not of any host: a
// recovery tick logs a sign of life for each job, and silence is what the alert hears.
param location string
param tags object
param prefix string
param actionGroupName string

@description('Empty: nobody is told.')
param email string

param workspaceId string

@description('Empty where there is no Service Bus.')
param serviceBusId string

@description('The manifest\'s jobs.')
param jobs array

param namespace string

var jobNames = join(map(jobs, job => '"${job.name}"'), ', ')
var texts = 'union isfuzzy=true (AppTraces | project TimeGenerated, Text = Message), (ContainerAppConsoleLogs | project TimeGenerated, Text = Log)'
var audited = '${texts} | where Text contains "runonce.audit namespace=${namespace} " | parse Text with * " job=" Job:string " state=" State:string " overdue=" Overdue:long " expected=" Expected:string " last=" Last:string " outcome=" Outcome:string " finished=" Finished:datetime'
var failures = '${texts} | where Text matches regex @"\\[[a-z][a-z0-9_-]* [0-9TZ:-]+ #[0-9]+\\] (failed|unknown): " | parse Text with * "[" Job:string " " *'

var queries = [
  {
    name: 'missed-runs'
    title: 'A job did not run when it should have'
    detail: 'Its fire time is a quarter of an hour overdue. See `runonce audit` and `runonce status`.'
    severity: 1
    window: 'PT15M'
    frequency: 'PT5M'
    query: '${audited} | where State == "overdue" | project TimeGenerated, Job, Overdue, Expected'
  }
  {
    name: 'no-sign-of-life'
    title: 'Nothing has looked after a job for an hour'
    detail: 'No recovery tick has logged a sign of life: the host is down, or its logs do not arrive. See docs/deploy.md.'
    severity: 1
    window: 'PT1H'
    frequency: 'PT15M'
    query: 'datatable(Job: string) [${jobNames}] | join kind=leftanti (${audited} | distinct Job) on Job | extend TimeGenerated = now()'
  }
  {
    name: 'failed-runs'
    title: 'A run failed for good'
    detail: 'Its retries are used up, or trying again cannot help. See `runonce history JOB --attempts`.'
    severity: 2
    window: 'PT30M'
    frequency: 'PT5M'
    query: 'union (${failures}), (${audited} | where Outcome in ("failed", "unknown") and Finished > ago(30m)) | project TimeGenerated, Job'
  }
]

resource actionGroup 'Microsoft.Insights/actionGroups@2023-01-01' = {
  name: actionGroupName
  location: 'global'
  tags: tags
  properties: {
    groupShortName: 'runonce'
    enabled: true
    emailReceivers: empty(email)
      ? []
      : [
          {
            name: 'operator'
            emailAddress: email
            useCommonAlertSchema: true
          }
        ]
  }
}

resource logAlerts 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for one in queries: if (!empty(jobs)) {
  name: '${prefix}${one.name}'
  location: location
  tags: tags
  kind: 'LogAlert'
  properties: {
    displayName: one.title
    description: one.detail
    severity: one.severity
    enabled: true
    scopes: [workspaceId]
    evaluationFrequency: one.frequency
    windowSize: one.window
    autoMitigate: true
    skipQueryValidation: true
    criteria: {
      allOf: [
        {
          query: one.query
          timeAggregation: 'Count'
          operator: 'GreaterThan'
          threshold: 0
          dimensions: [
            {
              name: 'Job'
              operator: 'Include'
              values: ['*']
            }
          ]
          failingPeriods: {
            numberOfEvaluationPeriods: 1
            minFailingPeriodsToAlert: 1
          }
        }
      ]
    }
    actions: { actionGroups: [actionGroup.id] }
  }
}]

resource deadLetters 'Microsoft.Insights/metricAlerts@2018-03-01' = if (!empty(serviceBusId)) {
  name: '${prefix}dead-letters'
  location: 'global'
  tags: tags
  properties: {
    description: 'A message was put aside. See `runonce dead-letters list`.'
    severity: 2
    enabled: true
    scopes: [serviceBusId]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT5M'
    autoMitigate: true
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: 'deadLetters'
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: 'Microsoft.ServiceBus/namespaces'
          metricName: 'DeadletteredMessages'
          timeAggregation: 'Maximum'
          operator: 'GreaterThan'
          threshold: 0
          dimensions: [
            {
              name: 'EntityName'
              operator: 'Include'
              values: ['*']
            }
          ]
        }
      ]
    }
    actions: [
      {
        actionGroupId: actionGroup.id
      }
    ]
  }
}

output actionGroupId string = actionGroup.id
