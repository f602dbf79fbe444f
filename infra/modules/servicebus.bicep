// A queue for each handler. One that reads a topic has a subscription too, which forwards to its queue; without
// forwarding the handler reads both, and retries through the queue. docs/manifest.md says why each figure is what it is.
import { queueHandler, texts } from '../types.bicep'

param location string
param tags texts
param name string
param handlers queueHandler[]

@description('The topics that handlers subscribe to.')
param topics string[]

param topicDuplicateDetectionWindow string
param isPrivate bool
param workspaceId string

var subscribers = filter(handlers, handler => (!empty(handler.subscription)))
var tier = isPrivate ? 'Premium' : 'Standard'

resource namespace 'Microsoft.ServiceBus/namespaces@2026-01-01' = {
  name: name
  location: location
  tags: tags
  sku: {
    name: tier
    tier: tier
    capacity: isPrivate ? 1 : null
  }
  properties: {
    disableLocalAuth: true
    minimumTlsVersion: '1.2'
    publicNetworkAccess: isPrivate ? 'Disabled' : 'Enabled'
    premiumMessagingPartitions: isPrivate ? 1 : null
  }
}

resource queues 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' = [
  for handler in handlers: {
    parent: namespace
    name: replace(handler.queue, '/', '~') // Azure Resource Manager's way to write a name with a slash
    properties: {
      lockDuration: handler.lock_duration
      maxDeliveryCount: handler.max_delivery_count
      defaultMessageTimeToLive: handler.default_ttl
      deadLetteringOnMessageExpiration: true
      requiresDuplicateDetection: true
      duplicateDetectionHistoryTimeWindow: handler.duplicate_detection_window
    }
  }
]

resource topicEntities 'Microsoft.ServiceBus/namespaces/topics@2026-01-01' = [
  for topic in topics: {
    parent: namespace
    name: replace(topic, '/', '~')
    properties: {
      requiresDuplicateDetection: true
      duplicateDetectionHistoryTimeWindow: topicDuplicateDetectionWindow
    }
  }
]

resource subscriptions 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01' = [
  for handler in subscribers: {
    parent: topicEntities[indexOf(topics, handler.topic)]
    name: handler.subscription
    properties: {
      lockDuration: handler.lock_duration
      maxDeliveryCount: handler.max_delivery_count
      defaultMessageTimeToLive: handler.default_ttl
      deadLetteringOnMessageExpiration: true
      deadLetteringOnFilterEvaluationExceptions: true
      forwardTo: handler.forward ? handler.queue : null
    }
    dependsOn: [
      queues
    ]
  }
]

resource logs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: namespace
  name: 'runonce'
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        categoryGroup: 'allLogs'
        enabled: true
      }
    ]
  }
}

output host string = '${namespace.name}.servicebus.windows.net'
