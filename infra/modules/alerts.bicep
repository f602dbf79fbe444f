// Alerts on what did not go well, and on what did not happen. The last is asked of the log, not of any host: a
// recovery tick logs a sign of life for each job and for itself, and silence is what the alert hears. The workbook shows
// the same lines, by the same queries, and beside them what RUNONCE_TELEMETRY=azure measures.
import { scheduledJob, texts } from '../types.bicep'

param location string
param tags texts
param prefix string
param actionGroupName string

@description('Empty: nobody is told.')
param email string

param workspaceId string

@description('Empty where there is no Service Bus.')
param serviceBusName string

@description('Whose lines are this deployment\'s, in a workspace that others may share.')
param applicationInsightsName string

param containerAppsEnvironmentName string

@description('The manifest\'s jobs.')
param jobs scheduledJob[]

param namespace string

@description('0 makes no budget.')
param monthlyBudget int

@description('First day of the budget\'s first month.')
param budgetStart string

var jobNames = join(map(jobs, job => '"${job.name}"'), ', ')
var lines = 'union isfuzzy=true (AppTraces | project TimeGenerated, Text = Message), (ContainerAppConsoleLogs | project TimeGenerated, Text = Log)'

// What may be "-" is read as text: where one column does not have its type, `parse` empties all of them.
var audited = '${lines} | where Text contains "runonce.audit namespace=${namespace} " | parse Text with * " job=" Job:string " state=" State:string " overdue=" Overdue:long " expected=" Expected:string " last=" Last:string " outcome=" Outcome:string " finished=" Finished:string'
// A run's own line does not name its namespace, so it is asked for where it comes from.
var ownLines = 'union isfuzzy=true (AppTraces | where _ResourceId endswith "/${applicationInsightsName}" | project TimeGenerated, Text = Message), (ContainerAppConsoleLogs | where _ResourceId endswith "/${containerAppsEnvironmentName}" | project TimeGenerated, Text = Log)'
var failures = '${ownLines} | where Text matches regex @"\\[[a-z][a-z0-9_-]* [0-9TZ:-]+ #[0-9]+\\] (failed|unknown): " | parse Text with * "[" Job:string " " *'

var jobQueries = [
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
    detail: 'No recovery tick has logged a sign of life of this job: the host is down, an older deployment runs, or its logs do not arrive. See docs/deploy.md.'
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
    query: 'union (${failures} | project TimeGenerated, Job), (${audited} | where Outcome in ("failed", "unknown") and todatetime(Finished) > ago(30m) | project TimeGenerated, Job)'
  }
]
var everyQuery = [
  {
    name: 'recovery-silent'
    title: 'Recovery has not ticked for an hour'
    detail: 'No host looks for what is unfinished: it is down, was not deployed, cannot reach its storage, or its logs do not arrive. See docs/deploy.md.'
    severity: 1
    window: 'PT1H'
    frequency: 'PT15M'
    query: '${lines} | where Text contains "runonce.recovery namespace=${namespace} " | summarize Ticks = count() | where Ticks == 0 | extend TimeGenerated = now(), Job = "runonce_recovery"'
  }
]
var queries = concat(empty(jobs) ? [] : jobQueries, everyQuery)

var queueAlerts = [
  {
    name: 'dead-letters'
    detail: 'A message was put aside. See `runonce dead-letters list`.'
    severity: 2
    metric: 'DeadletteredMessages'
    aggregation: 'Maximum'
    threshold: 0
    window: 'PT5M'
  }
  {
    name: 'backlog'
    detail: 'More than 1000 messages wait: more come than are handled, or the scaler does not start anybody.'
    severity: 2
    metric: 'ActiveMessages'
    aggregation: 'Average'
    threshold: 1000
    window: 'PT15M'
  }
  {
    name: 'waiting-messages'
    detail: 'A queue or topic was not empty for an hour, so messages may have waited for that long: nobody reads it, or too few do.'
    severity: 2
    metric: 'ActiveMessages'
    aggregation: 'Minimum'
    threshold: 0
    window: 'PT1H'
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

resource logAlerts 'Microsoft.Insights/scheduledQueryRules@2026-03-01' = [
  for one in queries: {
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
  }
]

resource serviceBus 'Microsoft.ServiceBus/namespaces@2026-01-01' existing = if (!empty(serviceBusName)) {
  name: empty(serviceBusName) ? 'none' : serviceBusName
}

resource queueMetrics 'Microsoft.Insights/metricAlerts@2026-01-01' = [
  for one in queueAlerts: if (!empty(serviceBusName)) {
    name: '${prefix}${one.name}'
    location: 'global'
    tags: tags
    properties: {
      description: one.detail
      severity: one.severity
      enabled: true
      scopes: [serviceBus.id]
      evaluationFrequency: 'PT5M'
      windowSize: one.window
      autoMitigate: true
      criteria: {
        'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
        allOf: [
          {
            name: one.name
            criterionType: 'StaticThresholdCriterion'
            metricNamespace: 'Microsoft.ServiceBus/namespaces'
            metricName: one.metric
            timeAggregation: one.aggregation
            operator: 'GreaterThan'
            threshold: one.threshold
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
]

resource budget 'Microsoft.Consumption/budgets@2023-11-01' = if (monthlyBudget > 0) {
  name: '${prefix}budget'
  properties: {
    category: 'Cost'
    amount: monthlyBudget
    timeGrain: 'Monthly'
    timePeriod: { startDate: budgetStart }
    notifications: {
      forecast: {
        enabled: true
        operator: 'GreaterThan'
        threshold: 100
        thresholdType: 'Forecasted'
        contactEmails: []
        contactGroups: [actionGroup.id]
      }
      reached: {
        enabled: true
        operator: 'GreaterThan'
        threshold: 90
        thresholdType: 'Actual'
        contactEmails: []
        contactGroups: [actionGroup.id]
      }
    }
  }
}

var numbers = 'AppMetrics | where AppRoleName endswith ".${namespace}" | extend About = todynamic(Properties)'
var tiles = [
  {
    name: 'overdue'
    title: 'Overdue (from the log)'
    look: 'table'
    query: '${audited} | where State == "overdue" | summarize arg_max(TimeGenerated, Overdue, Expected) by Job'
  }
  {
    name: 'failures'
    title: 'Runs that failed for good, or are held (from the log)'
    look: 'table'
    query: '${failures} | project TimeGenerated, Job, Text | order by TimeGenerated desc'
  }
  {
    name: 'signs-of-life'
    title: 'Last sign of life (from the log)'
    look: 'table'
    query: '${audited} | summarize arg_max(TimeGenerated, State, Last, Outcome, Finished) by Job'
  }
  {
    name: 'runs'
    title: 'Runs by outcome'
    look: 'barchart'
    query: '${numbers} | where Name == "runonce.runs" | summarize Runs = sum(Sum) by Outcome = tostring(About["runonce.outcome"]), bin(TimeGenerated, 1h)'
  }
  {
    name: 'incidents'
    title: 'Incidents'
    look: 'table'
    query: '${numbers} | where Name == "runonce.incidents" | project TimeGenerated, Job = tostring(About["runonce.name"]), Kind = tostring(About["runonce.kind"]), Incidents = Sum'
  }
  {
    name: 'duration'
    title: 'Seconds a run takes, on average and at most'
    look: 'table'
    query: '${numbers} | where Name == "runonce.run.duration" | summarize Average = sum(Sum) / sum(ItemCount), Most = max(Max), Runs = sum(ItemCount) by Job = tostring(About["runonce.job"])'
  }
  {
    name: 'lateness'
    title: 'Seconds a run begins after its fire time, at most'
    look: 'timechart'
    query: '${numbers} | where Name == "runonce.run.lateness" | summarize Late = max(Max) by Job = tostring(About["runonce.job"]), bin(TimeGenerated, 15m)'
  }
  {
    name: 'takeovers'
    title: 'Takeovers from hosts that died, and leases lost'
    look: 'table'
    query: '${numbers} | where Name in ("runonce.takeover.duration", "runonce.lease.lost") | summarize Takeovers = sumif(ItemCount, Name == "runonce.takeover.duration"), LongestSeconds = maxif(Max, Name == "runonce.takeover.duration"), Lost = sumif(Sum, Name == "runonce.lease.lost") by Job = tostring(About["runonce.name"])'
  }
  {
    name: 'renewals'
    title: 'Seconds the latest renewal of a lease was behind its time'
    look: 'timechart'
    query: '${numbers} | where Name == "runonce.lease.renewal.lateness" | summarize Late = max(Max) by Job = tostring(About["runonce.job"]), bin(TimeGenerated, 15m)'
  }
  {
    name: 'claims'
    title: 'What came, and what became of it'
    look: 'table'
    query: '${numbers} | where Name == "runonce.claims" | summarize Times = sum(Sum) by Job = tostring(About["runonce.name"]), Outcome = tostring(About["runonce.outcome"])'
  }
  {
    name: 'age'
    title: 'Seconds a message waits before it is claimed, at most'
    look: 'timechart'
    query: '${numbers} | where Name == "runonce.message.age" | summarize Oldest = max(Max) by Handler = tostring(About["runonce.handler"]), bin(TimeGenerated, 15m)'
  }
]

resource workbook 'Microsoft.Insights/workbooks@2023-06-01' = {
  name: guid(workspaceId, namespace)
  location: location
  tags: tags
  kind: 'shared'
  properties: {
    displayName: 'runonce ${namespace}'
    category: 'workbook'
    sourceId: workspaceId
    version: 'Notebook/1.0'
    serializedData: string({
      version: 'Notebook/1.0'
      items: map(
        tiles,
        tile => ({
          type: 3
          name: tile.name
          content: {
            version: 'KqlItem/1.0'
            query: tile.query
            title: tile.title
            visualization: tile.look
            size: 0
            timeContext: { durationMs: 86400000 }
            queryType: 0
            resourceType: 'microsoft.operationalinsights/workspaces'
          }
        })
      )
      fallbackResourceIds: [workspaceId]
    })
  }
}

output actionGroupId string = actionGroup.id
