// A queue for each handler, or a subscription for each that reads a topic. docs/manifest.md says why each figure is
// what it is.
param location string
param tags object
param name string

@description('The manifest\'s handlers.')
param handlers array

@description('The topics that handlers subscribe to.')
param topics array

param topicDuplicateDetectionWindow string
param isPrivate bool

var queueHandlers = filter(handlers, handler => (empty(handler.subscription)))
var subscribers = filter(handlers, handler => (!empty(handler.subscription)))
var tier = isPrivate ? 'Premium' : 'Standard'

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' = {
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

resource queues 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = [for handler in queueHandlers: {
  parent: namespace
  name: handler.queue
  properties: {
    lockDuration: handler.lock_duration
    maxDeliveryCount: handler.max_delivery_count
    defaultMessageTimeToLive: handler.default_ttl
    deadLetteringOnMessageExpiration: true
    requiresDuplicateDetection: true
    duplicateDetectionHistoryTimeWindow: handler.duplicate_detection_window
  }
}]

resource topicEntities 'Microsoft.ServiceBus/namespaces/topics@2024-01-01' = [for topic in topics: {
  parent: namespace
  name: topic
  properties: {
    requiresDuplicateDetection: true
    duplicateDetectionHistoryTimeWindow: topicDuplicateDetectionWindow
  }
}]

resource subscriptions 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = [for handler in subscribers: {
  parent: topicEntities[indexOf(topics, handler.topic)]
  name: handler.subscription
  properties: {
    lockDuration: handler.lock_duration
    maxDeliveryCount: handler.max_delivery_count
    defaultMessageTimeToLive: handler.default_ttl
    deadLetteringOnMessageExpiration: true
    deadLetteringOnFilterEvaluationExceptions: true
  }
}]

output id string = namespace.id
output name string = namespace.name
output host string = '${namespace.name}.servicebus.windows.net'
