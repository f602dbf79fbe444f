// The Container Apps jobs, deployed by `azd deploy` once their image exists: one for each scheduled job, one for
// recovery, one for each handler. Everything about them comes from the manifest.
param location string = resourceGroup().location
param environmentName string
param environmentId string
param image string
param registryServer string

@description('Identity of the jobs\' code.')
param identityId string

param identityClientId string

@description('Identity that pulls the image and reads queue lengths; no code runs with it.')
param platformIdentityId string

param storageAccountName string

@description('Name of the Service Bus namespace; empty where no handler needs one.')
param serviceBusNamespace string = ''

@description('Host name of the Service Bus namespace; empty where no handler needs one.')
param serviceBusHost string = ''

param namespace string
param actionGroupId string

@description('Settings of your jobs, and overrides of the toolkit\'s own: the output JOB_SETTINGS of main.bicep.')
param appSettings string = base64('{}')

@description('Address of a Key Vault\'s secret: the webhook that is told of incidents. Empty is none.')
param notifyUrlSecret string = ''

@description('Address of a Key Vault\'s secret: the PostgreSQL or Redis that holds the leases. Empty is the storage account.')
param leasesSecret string = ''

@description('Cores of an execution, as text.')
param cpu string = '0.5'

@description('Memory of an execution; 2 Gi for each core.')
param memory string = '1Gi'

@description('Most executions of a handler at a time, as text.')
param maxExecutions string = '10'

@description('Cores of recovery\'s executions: it looks, and runs here what another host left unfinished.')
param recoveryCpu string = '0.25'

@description('Memory of recovery\'s executions; raise both where a job that it may have to finish needs more.')
param recoveryMemory string = '0.5Gi'

@description('When this is deployed; an execution of an older deployment does nothing when its job has left the code.')
param deployedAt string = utcNow()

var abbreviations = loadJsonContent('abbreviations.json')
var manifest = loadJsonContent('jobs.json')
var tags = { 'azd-env-name': environmentName }
var storageSuffix = environment().suffixes.storage

// A schedule that five fields cannot say is left out here; the check before provisioning says which and what to do.
var scheduled = any(filter(manifest.jobs, job => (!empty(job.container_apps_cron))))
var handlers = any(empty(serviceBusNamespace) ? [] : (manifest.handlers))

var settings = union(
  manifest.settings,
  manifest.container_apps_settings,
  {
    RUNONCE_NAMESPACE: namespace
    RUNONCE_QUEUE_NAMES: 'plain' // the broker is this environment's alone
    RUNONCE_DEPLOYMENT: deployedAt
    RUNONCE_TRANSPORT: empty(serviceBusNamespace) ? 'storage' : 'servicebus'
    RUNONCE_STORAGE__credential: 'managedidentity'
    RUNONCE_STORAGE__clientId: identityClientId
    RUNONCE_STORAGE__blobServiceUri: 'https://${storageAccountName}.blob.${storageSuffix}'
    RUNONCE_STORAGE__queueServiceUri: 'https://${storageAccountName}.queue.${storageSuffix}'
    RUNONCE_STORAGE__tableServiceUri: 'https://${storageAccountName}.table.${storageSuffix}'
    AZURE_CLIENT_ID: identityClientId
  },
  empty(serviceBusHost)
    ? {}
    : {
        RUNONCE_SERVICEBUS__fullyQualifiedNamespace: serviceBusHost
        RUNONCE_SERVICEBUS__credential: 'managedidentity'
        RUNONCE_SERVICEBUS__clientId: identityClientId
      },
  base64ToJson(appSettings)
)
var vaulted = filter(
  [
    { setting: 'RUNONCE_NOTIFY_URL', name: 'notify-url', url: notifyUrlSecret }
    { setting: 'RUNONCE_LEASES', name: 'leases', url: leasesSecret }
  ],
  one => !empty(one.url)
)
var variables = concat(
  map(items(settings), item => ({ name: item.key, value: item.value })),
  map(vaulted, one => ({ name: one.setting, secretRef: one.name }))
)
var secrets = map(vaulted, one => ({ name: one.name, keyVaultUrl: one.url, identity: identityId }))

var identities = {
  type: 'UserAssigned'
  userAssignedIdentities: {
    '${identityId}': {}
    '${platformIdentityId}': {}
  }
}
var registries = [
  {
    server: registryServer
    identity: platformIdentityId
  }
]
var identitySettings = [
  {
    identity: identityId
    lifecycle: 'Main'
  }
  {
    identity: platformIdentityId
    lifecycle: 'None'
  }
]

// The manifest says what a job or a handler asks for itself; what it does not say is the parameters'.
var recoveryEntry = any(manifest.recovery)

resource scheduledJobs 'Microsoft.App/jobs@2026-01-01' = [
  for job in scheduled: {
    name: '${abbreviations.containerAppsJob}${job.resource}'
    location: location
    tags: tags
    identity: identities
    properties: {
      environmentId: environmentId
      workloadProfileName: 'Consumption'
      configuration: {
        triggerType: 'Schedule'
        replicaTimeout: job.replica_timeout
        replicaRetryLimit: job.replica_retry_limit
        scheduleTriggerConfig: {
          cronExpression: job.container_apps_cron
          parallelism: 1
          replicaCompletionCount: 1
        }
        registries: registries
        identitySettings: identitySettings
        secrets: secrets
      }
      template: {
        containers: [
          {
            name: 'run'
            image: image
            args: ['run', job.name, '--scheduled']
            env: variables
            resources: {
              cpu: json(empty(job.?cpu ?? '') ? cpu : (job.cpu))
              memory: empty(job.?memory ?? '') ? memory : (job.memory)
            }
          }
        ]
      }
    }
  }
]

resource recovery 'Microsoft.App/jobs@2026-01-01' = {
  name: '${abbreviations.containerAppsJob}${manifest.recovery.resource}'
  location: location
  tags: tags
  identity: identities
  properties: {
    environmentId: environmentId
    workloadProfileName: 'Consumption'
    configuration: {
      triggerType: 'Schedule'
      replicaTimeout: manifest.recovery.replica_timeout
      replicaRetryLimit: manifest.recovery.replica_retry_limit
      scheduleTriggerConfig: {
        cronExpression: manifest.recovery.container_apps_cron
        parallelism: 1
        replicaCompletionCount: 1
      }
      registries: registries
      identitySettings: identitySettings
      secrets: secrets
    }
    template: {
      containers: [
        {
          name: 'recover'
          image: image
          args: ['recover', '--work']
          env: variables
          resources: {
            cpu: json(empty(recoveryEntry.?cpu ?? '') ? recoveryCpu : (recoveryEntry.cpu))
            memory: empty(recoveryEntry.?memory ?? '') ? recoveryMemory : (recoveryEntry.memory)
          }
        }
      ]
    }
  }
}

resource eventJobs 'Microsoft.App/jobs@2026-01-01' = [
  for handler in handlers: {
    name: '${abbreviations.containerAppsJob}${handler.resource}'
    location: location
    tags: tags
    identity: identities
    properties: {
      environmentId: environmentId
      workloadProfileName: 'Consumption'
      configuration: {
        triggerType: 'Event'
        replicaTimeout: handler.replica_timeout
        replicaRetryLimit: handler.replica_retry_limit
        eventTriggerConfig: {
          parallelism: 1
          replicaCompletionCount: 1
          scale: {
            minExecutions: 0
            maxExecutions: int(maxExecutions)
            pollingInterval: 15
            // One for each entity that the handler reads.
            rules: concat(
              [
                {
                  name: 'queue'
                  type: 'azure-servicebus'
                  identity: platformIdentityId
                  metadata: {
                    namespace: serviceBusNamespace
                    queueName: handler.queue
                    messageCount: string(handler.concurrency)
                  }
                }
              ],
              empty(handler.subscription) || (handler.forward)
                ? []
                : [
                    {
                      name: 'subscription'
                      type: 'azure-servicebus'
                      identity: platformIdentityId
                      metadata: {
                        namespace: serviceBusNamespace
                        topicName: handler.topic
                        subscriptionName: handler.subscription
                        messageCount: string(handler.concurrency)
                      }
                    }
                  ]
            )
          }
        }
        registries: registries
        identitySettings: identitySettings
        secrets: secrets
      }
      template: {
        containers: [
          {
            name: 'work'
            image: image
            args: ['work', handler.name, '--max-messages', string(handler.max_messages), '--max-wait', '10']
            env: variables
            resources: {
              cpu: json(empty(handler.?cpu ?? '') ? cpu : (handler.cpu))
              memory: empty(handler.?memory ?? '') ? memory : (handler.memory)
            }
          }
        ]
      }
    }
  }
]

var names = concat(map(scheduled, job => '${job.resource}'), map(handlers, handler => '${handler.resource}'), [
  manifest.recovery.resource
])
var watched = map(
  names,
  name => ({ name: name, id: resourceId('Microsoft.App/jobs', '${abbreviations.containerAppsJob}${name}') })
)

resource failedExecutions 'Microsoft.Insights/metricAlerts@2026-01-01' = [
  for one in watched: {
    name: '${abbreviations.alert}failed-executions-${one.name}'
    location: 'global'
    tags: tags
    properties: {
      description: 'An execution failed: its fire time failed for good, or storage or the broker was out of reach. See its log.'
      severity: 2
      enabled: true
      scopes: [one.id]
      evaluationFrequency: 'PT5M'
      windowSize: 'PT5M'
      autoMitigate: true
      criteria: {
        'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
        allOf: [
          {
            name: 'failed'
            criterionType: 'StaticThresholdCriterion'
            metricNamespace: 'Microsoft.App/jobs'
            metricName: 'Executions'
            timeAggregation: 'Total'
            operator: 'GreaterThan'
            threshold: 0
            skipMetricValidation: true
            dimensions: [
              {
                name: 'state'
                operator: 'Include'
                values: ['Failed']
              }
            ]
          }
        ]
      }
      actions: [
        {
          actionGroupId: actionGroupId
        }
      ]
    }
    dependsOn: [
      scheduledJobs
      recovery
      eventJobs
    ]
  }
]
