// Who may do what in storage; docs/infrastructure.md explains each. An identity or principal that is empty gets
// nothing. Assignments are named after identities, not principals: those names are known before anything is made.
import { place } from '../types.bicep'

param storageName string

@description('Where the identities are; the account may be elsewhere.')
param identities place

param functionsIdentity string
param jobsIdentity string
param operatorPrincipalId string
param operatorPrincipalType string

@description('Else the operator only reads.')
param operatorWrites bool

param containers string[]
param tables string[]
param requestQueue string

var blobDataOwner = 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b'
var blobDataContributor = 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'
var blobDataReader = '2a2b9908-6ea1-4ae2-8e65-a410df84e7d1'
var queueDataContributor = '974c5e8b-45b9-4653-ba55-5f855dd0fb88'
var queueDataReader = '19e7f393-937e-4f77-808e-94535e297925'
var tableDataContributor = '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'
var tableDataReader = '76199698-9eea-4c19-bc75-cec21354c6b6'

// The account is the Functions host's own storage: it makes containers and tables in it, under names of its choice.
var hostRoles = empty(functionsIdentity) ? [] : [blobDataOwner, tableDataContributor]
var queues = [requestQueue, '${requestQueue}-poison']
var queueHolders = filter([functionsIdentity, jobsIdentity], name => (!empty(name)))
var queueGrants = flatten(map(queueHolders, holder => (map(queues, queue => ({ holder: holder, queue: queue })))))
var jobsContainers = empty(jobsIdentity) ? [] : containers
var jobsTables = empty(jobsIdentity) ? [] : tables
var operatorContainers = empty(operatorPrincipalId) ? [] : containers
var operatorTables = empty(operatorPrincipalId) ? [] : tables
var operatorQueues = empty(operatorPrincipalId) ? [] : queues
var blobRole = operatorWrites ? blobDataContributor : blobDataReader
var tableRole = operatorWrites ? tableDataContributor : tableDataReader
var queueRole = operatorWrites ? queueDataContributor : queueDataReader

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' existing = {
  name: storageName
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2025-06-01' existing = {
  parent: account
  name: 'default'
}

resource blobContainers 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' existing = [
  for container in containers: {
    parent: blobs
    name: container
  }
]

resource tableService 'Microsoft.Storage/storageAccounts/tableServices@2025-06-01' existing = {
  parent: account
  name: 'default'
}

resource runTables 'Microsoft.Storage/storageAccounts/tableServices/tables@2025-06-01' existing = [
  for table in tables: {
    parent: tableService
    name: table
  }
]

resource queueService 'Microsoft.Storage/storageAccounts/queueServices@2025-06-01' existing = {
  parent: account
  name: 'default'
}

resource requestQueues 'Microsoft.Storage/storageAccounts/queueServices/queues@2025-06-01' existing = [
  for queue in queues: {
    parent: queueService
    name: queue
  }
]

// One look-up for each assignment: where there is none, nothing is looked up.
resource hosts 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = [
  for role in hostRoles: {
    scope: resourceGroup(identities.subscription, identities.group)
    name: functionsIdentity
  }
]

resource holders 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = [
  for grant in queueGrants: {
    scope: resourceGroup(identities.subscription, identities.group)
    name: grant.holder
  }
]

resource containerHolders 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = [
  for container in jobsContainers: {
    scope: resourceGroup(identities.subscription, identities.group)
    name: jobsIdentity
  }
]

resource tableHolders 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = [
  for table in jobsTables: {
    scope: resourceGroup(identities.subscription, identities.group)
    name: jobsIdentity
  }
]

resource onAccount 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (role, i) in hostRoles: {
    scope: account
    name: guid(account.id, hosts[i].id, role)
    properties: {
      principalId: hosts[i].properties.principalId
      principalType: 'ServicePrincipal'
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
    }
  }
]

resource onQueues 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (grant, i) in queueGrants: {
    scope: requestQueues[indexOf(queues, grant.queue)]
    name: guid(account.id, grant.queue, holders[i].id, queueDataContributor)
    properties: {
      principalId: holders[i].properties.principalId
      principalType: 'ServicePrincipal'
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', queueDataContributor)
    }
  }
]

resource onContainers 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (container, i) in jobsContainers: {
    scope: blobContainers[i]
    name: guid(account.id, container, containerHolders[i].id, blobDataContributor)
    properties: {
      principalId: containerHolders[i].properties.principalId
      principalType: 'ServicePrincipal'
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', blobDataContributor)
    }
  }
]

resource onTables 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (table, i) in jobsTables: {
    scope: runTables[i]
    name: guid(account.id, table, tableHolders[i].id, tableDataContributor)
    properties: {
      principalId: tableHolders[i].properties.principalId
      principalType: 'ServicePrincipal'
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', tableDataContributor)
    }
  }
]

resource operatorOnContainers 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (container, i) in operatorContainers: {
    scope: blobContainers[i]
    name: guid(account.id, container, operatorPrincipalId, blobRole)
    properties: {
      principalId: operatorPrincipalId
      principalType: operatorPrincipalType
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', blobRole)
    }
  }
]

resource operatorOnTables 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (table, i) in operatorTables: {
    scope: runTables[i]
    name: guid(account.id, table, operatorPrincipalId, tableRole)
    properties: {
      principalId: operatorPrincipalId
      principalType: operatorPrincipalType
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', tableRole)
    }
  }
]

resource operatorOnQueues 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for (queue, i) in operatorQueues: {
    scope: requestQueues[i]
    name: guid(account.id, queue, operatorPrincipalId, queueRole)
    properties: {
      principalId: operatorPrincipalId
      principalType: operatorPrincipalType
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', queueRole)
    }
  }
]
