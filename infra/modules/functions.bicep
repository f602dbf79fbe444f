// The Function app, on Flex Consumption. Its functions come from the code: one for each job and handler, and two of
// the toolkit's own. On this plan timers go by UTC, so no time zone is set; the code knows the jobs' zones.
import { texts } from '../types.bicep'

param location string
param tags texts
param name string
param planName string
param identityName string
param storageName string
param packageContainer string

@description('Empty where no handler needs Service Bus.')
param serviceBusName string

param applicationInsightsName string
param workspaceId string
param instanceMemoryMB int
param maximumInstanceCount int

@description('RollingUpdate lets running functions finish when code or settings change; Recreate ends them.')
param siteUpdateStrategy string

param zoneRedundant bool

@description('Empty without a virtual network.')
param subnetId string

param settings texts

@description('Empty where nobody is told of incidents.')
param notifyUrlSecret string
param leasesSecret string

var monitoringMetricsPublisher = '3913510d-42f4-4e42-8a64-420c390055eb'

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = {
  name: identityName
}

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' existing = {
  name: applicationInsightsName
}

resource publish 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: applicationInsights
  name: guid(applicationInsights.id, identity.id, monitoringMetricsPublisher)
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', monitoringMetricsPublisher)
  }
}

resource plan 'Microsoft.Web/serverfarms@2025-05-01' = {
  name: planName
  location: location
  tags: tags
  kind: 'functionapp'
  sku: {
    name: 'FC1'
    tier: 'FlexConsumption'
  }
  properties: {
    reserved: true
    zoneRedundant: zoneRedundant
  }
}

// Endpoints are put together from the account's name, and what only a deployment knows stays out of the lambda.
var storageSuffix = environment().suffixes.storage
var blobEndpoint = 'https://${storageName}.blob.${storageSuffix}'
var connections = union(
  {
    AzureWebJobsStorage__credential: 'managedidentity'
    AzureWebJobsStorage__blobServiceUri: blobEndpoint
    AzureWebJobsStorage__queueServiceUri: 'https://${storageName}.queue.${storageSuffix}'
    AzureWebJobsStorage__tableServiceUri: 'https://${storageName}.table.${storageSuffix}'
  },
  empty(serviceBusName)
    ? {}
    : {
        ServiceBusConnection__fullyQualifiedNamespace: '${serviceBusName}.servicebus.windows.net'
        ServiceBusConnection__credential: 'managedidentity'
      }
)
var variables = map(items(union(settings, connections)), item => ({ name: item.key, value: item.value }))
var identityVariables = [
  { name: 'AZURE_CLIENT_ID', value: identity.properties.clientId }
  { name: 'AzureWebJobsStorage__clientId', value: identity.properties.clientId }
  { name: 'APPLICATIONINSIGHTS_CONNECTION_STRING', value: applicationInsights.properties.ConnectionString }
  {
    name: 'APPLICATIONINSIGHTS_AUTHENTICATION_STRING'
    value: 'ClientId=${identity.properties.clientId};Authorization=AAD'
  }
]
var busVariables = empty(serviceBusName)
  ? []
  : [{ name: 'ServiceBusConnection__clientId', value: identity.properties.clientId }]
var vaulted = filter(
  [{ name: 'RUNONCE_NOTIFY_URL', url: notifyUrlSecret }, { name: 'RUNONCE_LEASES', url: leasesSecret }],
  one => !empty(one.url)
)
var secretVariables = map(
  vaulted,
  one => ({ name: one.name, value: '@Microsoft.KeyVault(SecretUri=${one.url})' })
)

// The settings are part of the site, not a resource of their own: each update of the site may end what runs in it, so
// there is one, not two.
resource app 'Microsoft.Web/sites@2025-05-01' = {
  name: name
  location: location
  tags: union(tags, { 'azd-service-name': 'functions' })
  kind: 'functionapp,linux'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: { '${identity.id}': {} }
  }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    keyVaultReferenceIdentity: identity.id
    virtualNetworkSubnetId: empty(subnetId) ? null : subnetId
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: '${blobEndpoint}/${packageContainer}'
          authentication: {
            type: 'UserAssignedIdentity'
            userAssignedIdentityResourceId: identity.id
          }
        }
      }
      runtime: {
        name: 'python'
        version: '3.13'
      }
      scaleAndConcurrency: {
        instanceMemoryMB: instanceMemoryMB
        maximumInstanceCount: maximumInstanceCount
      }
      siteUpdateStrategy: { type: siteUpdateStrategy }
    }
    siteConfig: {
      minTlsVersion: '1.2'
      ftpsState: 'Disabled'
      appSettings: concat(variables, identityVariables, busVariables, secretVariables)
    }
  }
  dependsOn: [
    publish
  ]
}

resource noFtp 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2025-05-01' = {
  parent: app
  name: 'ftp'
  properties: { allow: false }
}

resource noScmPassword 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2025-05-01' = {
  parent: app
  name: 'scm'
  properties: { allow: false }
}

// Figures only: what the app logs comes by Application Insights already, and would be paid for twice.
resource figures 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: app
  name: 'runonce'
  properties: {
    workspaceId: workspaceId
    metrics: [
      {
        category: 'AllMetrics'
        enabled: true
      }
    ]
  }
}
