// Who may do what; docs/infrastructure.md explains each. A name or principal that is empty grants nothing.
param storageName string
param serviceBusName string
param registryName string
param applicationInsightsName string
param functionsPrincipalId string
param jobsPrincipalId string
param platformPrincipalId string
param operatorPrincipalId string
param operatorPrincipalType string

var blobDataOwner = 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b'
var blobDataContributor = 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'
var queueDataContributor = '974c5e8b-45b9-4653-ba55-5f855dd0fb88'
var tableDataContributor = '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'
var serviceBusDataOwner = '090c5cfd-751d-490a-894a-3ce6f1109419'
var serviceBusDataReceiver = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
var serviceBusDataSender = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
var acrPull = '7f951dda-4ed3-4680-a7ca-43fe172d538d'
var monitoringMetricsPublisher = '3913510d-42f4-4e42-8a64-420c390055eb'

var storageGrants = filter(
  [
    { principal: functionsPrincipalId, type: 'ServicePrincipal', role: blobDataOwner }
    { principal: functionsPrincipalId, type: 'ServicePrincipal', role: queueDataContributor }
    { principal: functionsPrincipalId, type: 'ServicePrincipal', role: tableDataContributor }
    { principal: jobsPrincipalId, type: 'ServicePrincipal', role: blobDataContributor }
    { principal: jobsPrincipalId, type: 'ServicePrincipal', role: queueDataContributor }
    { principal: jobsPrincipalId, type: 'ServicePrincipal', role: tableDataContributor }
    { principal: operatorPrincipalId, type: operatorPrincipalType, role: blobDataContributor }
    { principal: operatorPrincipalId, type: operatorPrincipalType, role: queueDataContributor }
    { principal: operatorPrincipalId, type: operatorPrincipalType, role: tableDataContributor }
  ],
  grant => (!empty(grant.principal))
)
var serviceBusGrants = filter(
  [
    { principal: functionsPrincipalId, type: 'ServicePrincipal', role: serviceBusDataReceiver }
    { principal: functionsPrincipalId, type: 'ServicePrincipal', role: serviceBusDataSender }
    { principal: jobsPrincipalId, type: 'ServicePrincipal', role: serviceBusDataReceiver }
    { principal: jobsPrincipalId, type: 'ServicePrincipal', role: serviceBusDataSender }
    { principal: platformPrincipalId, type: 'ServicePrincipal', role: serviceBusDataOwner }
    { principal: operatorPrincipalId, type: operatorPrincipalType, role: serviceBusDataReceiver }
    { principal: operatorPrincipalId, type: operatorPrincipalType, role: serviceBusDataSender }
  ],
  grant => (!empty(grant.principal) && !empty(serviceBusName))
)

resource storage 'Microsoft.Storage/storageAccounts@2025-06-01' existing = {
  name: storageName
}

resource storageRoles 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for grant in storageGrants: {
  scope: storage
  name: guid(storage.id, grant.principal, grant.role)
  properties: {
    principalId: grant.principal
    principalType: grant.type
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', grant.role)
  }
}]

resource serviceBus 'Microsoft.ServiceBus/namespaces@2024-01-01' existing = if (!empty(serviceBusName)) {
  name: empty(serviceBusName) ? 'none' : serviceBusName
}

resource serviceBusRoles 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for grant in serviceBusGrants: {
  scope: serviceBus
  name: guid(serviceBus.id, grant.principal, grant.role)
  properties: {
    principalId: grant.principal
    principalType: grant.type
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', grant.role)
  }
}]

resource registry 'Microsoft.ContainerRegistry/registries@2025-11-01' existing = if (!empty(registryName)) {
  name: empty(registryName) ? 'none' : registryName
}

resource pull 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(registryName)) {
  scope: registry
  name: guid(registry.id, platformPrincipalId, acrPull)
  properties: {
    principalId: platformPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', acrPull)
  }
}

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' existing = {
  name: applicationInsightsName
}

resource publish 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(functionsPrincipalId)) {
  scope: applicationInsights
  name: guid(applicationInsights.id, functionsPrincipalId, monitoringMetricsPublisher)
  properties: {
    principalId: functionsPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', monitoringMetricsPublisher)
  }
}
