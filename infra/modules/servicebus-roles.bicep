// Who may do what with messages: each role on a queue, a subscription or a topic, never on the namespace. An identity
// or principal that is empty gets nothing.
import { queueHandler } from '../types.bicep'

param serviceBusName string
param handlers queueHandler[]
param topics string[]
param functionsIdentity string
param jobsIdentity string
param platformIdentity string

@description('Given only to who may write: there is no role that only reads messages.')
param operatorPrincipalId string

param operatorPrincipalType string

var dataOwner = '090c5cfd-751d-490a-894a-3ce6f1109419'
var dataReceiver = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
var dataSender = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'

var queues = map(handlers, handler => (handler.queue))
var direct = filter(handlers, handler => (!empty(handler.subscription) && !(handler.forward)))
var subscriptions = map(direct, handler => ({ topic: handler.topic, subscription: handler.subscription }))

// The scaler of each host asks for the length of what it reads, which is managing it: so the Functions app, whose
// scaler works with the app's own identity, owns its queues, and the platform's identity those of the jobs.
var queueRoles = concat(
  empty(functionsIdentity) ? [] : [{ holder: functionsIdentity, role: dataOwner }],
  empty(jobsIdentity) ? [] : [{ holder: jobsIdentity, role: dataReceiver }, { holder: jobsIdentity, role: dataSender }],
  empty(platformIdentity) ? [] : [{ holder: platformIdentity, role: dataOwner }]
)
var subscriptionRoles = filter(queueRoles, grant => (grant.role != dataSender))
var senders = filter([functionsIdentity, jobsIdentity], name => (!empty(name)))
var operatorRoles = empty(operatorPrincipalId) ? [] : [dataReceiver, dataSender]

var queueGrants = flatten(map(queues, one => (map(queueRoles, to => ({ entity: one, to: to })))))
var subscriptionGrants = flatten(map(subscriptions, one => (map(subscriptionRoles, to => ({ entity: one, to: to })))))
var topicGrants = flatten(map(topics, topic => (map(senders, holder => ({ entity: topic, holder: holder })))))
var operatorQueueGrants = flatten(map(queues, queue => (map(operatorRoles, role => ({ entity: queue, role: role })))))
var operatorSubscriptions = empty(operatorPrincipalId) ? [] : subscriptions
var operatorTopics = empty(operatorPrincipalId) ? [] : topics

resource namespace 'Microsoft.ServiceBus/namespaces@2026-01-01' existing = {
  name: serviceBusName
}

resource queueEntities 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' existing = [
  for queue in queues: {
    parent: namespace
    name: replace(queue, '/', '~')
  }
]

resource topicEntities 'Microsoft.ServiceBus/namespaces/topics@2026-01-01' existing = [
  for topic in topics: {
    parent: namespace
    name: replace(topic, '/', '~')
  }
]

resource subscriptionEntities 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01' existing = [
  for one in subscriptions: {
    parent: topicEntities[indexOf(topics, one.topic)]
    name: one.subscription
  }
]

resource queueHolders 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = [
  for grant in queueGrants: {
    name: grant.to.holder
  }
]

resource subscriptionHolders 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = [
  for grant in subscriptionGrants: {
    name: grant.to.holder
  }
]

resource topicHolders 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = [
  for grant in topicGrants: {
    name: grant.holder
  }
]

resource onQueues 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (grant, i) in queueGrants: {
    scope: queueEntities[indexOf(queues, grant.entity)]
    name: guid(namespace.id, 'queue', grant.entity, queueHolders[i].id, grant.to.role)
    properties: {
      principalId: queueHolders[i].properties.principalId
      principalType: 'ServicePrincipal'
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', grant.to.role)
    }
  }
]

resource onSubscriptions 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (grant, i) in subscriptionGrants: {
    scope: subscriptionEntities[indexOf(subscriptions, grant.entity)]
    name: guid(namespace.id, grant.entity.topic, grant.entity.subscription, subscriptionHolders[i].id, grant.to.role)
    properties: {
      principalId: subscriptionHolders[i].properties.principalId
      principalType: 'ServicePrincipal'
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', grant.to.role)
    }
  }
]

resource onTopics 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (grant, i) in topicGrants: {
    scope: topicEntities[indexOf(topics, grant.entity)]
    name: guid(namespace.id, 'topic', grant.entity, topicHolders[i].id, dataSender)
    properties: {
      principalId: topicHolders[i].properties.principalId
      principalType: 'ServicePrincipal'
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataSender)
    }
  }
]

resource operatorOnQueues 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for grant in operatorQueueGrants: {
    scope: queueEntities[indexOf(queues, grant.entity)]
    name: guid(namespace.id, 'queue', grant.entity, operatorPrincipalId, grant.role)
    properties: {
      principalId: operatorPrincipalId
      principalType: operatorPrincipalType
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', grant.role)
    }
  }
]

resource operatorOnSubscriptions 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (one, i) in operatorSubscriptions: {
    scope: subscriptionEntities[i]
    name: guid(namespace.id, one.topic, one.subscription, operatorPrincipalId, dataReceiver)
    properties: {
      principalId: operatorPrincipalId
      principalType: operatorPrincipalType
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataReceiver)
    }
  }
]

resource operatorOnTopics 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (topic, i) in operatorTopics: {
    scope: topicEntities[i]
    name: guid(namespace.id, 'topic', topic, operatorPrincipalId, dataSender)
    properties: {
      principalId: operatorPrincipalId
      principalType: operatorPrincipalType
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataSender)
    }
  }
]
