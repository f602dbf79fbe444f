// The account that holds leases, rows, the internal queue and the jobs' data; no key opens it.
import { texts } from '../types.bicep'

param location string
param tags texts
param name string

@description('The account is there already: only what the toolkit needs in it is made.')
param isThere bool

param sku string

@description('Blob containers of the toolkit.')
param containers string[]

@description('Tables of the toolkit.')
param tables string[]

@description('The internal queue of requests.')
param requestQueue string

@description('Container of the Function app\'s package; empty where there is none.')
param packageContainer string

param isPrivate bool
param workspaceId string

resource made 'Microsoft.Storage/storageAccounts@2025-06-01' = if (!isThere) {
  name: name
  location: location
  tags: tags
  kind: 'StorageV2'
  sku: { name: sku }
  properties: {
    accessTier: 'Hot'
    allowBlobPublicAccess: false
    allowCrossTenantReplication: false
    allowSharedKeyAccess: false
    defaultToOAuthAuthentication: true
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    publicNetworkAccess: isPrivate ? 'Disabled' : 'Enabled'
    networkAcls: {
      bypass: 'AzureServices'
      defaultAction: isPrivate ? 'Deny' : 'Allow'
    }
  }
}

resource softDelete 'Microsoft.Storage/storageAccounts/blobServices@2025-06-01' = if (!isThere) {
  parent: made
  name: 'default'
  properties: {
    deleteRetentionPolicy: {
      enabled: true
      days: 7
    }
  }
}

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' existing = {
  name: name
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2025-06-01' existing = {
  parent: account
  name: 'default'
}

resource blobContainers 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' = [
  for container in concat(containers, empty(packageContainer) ? [] : [packageContainer]): {
    parent: blobs
    name: container
    properties: { publicAccess: 'None' }
    dependsOn: [
      softDelete
    ]
  }
]

resource tableService 'Microsoft.Storage/storageAccounts/tableServices@2025-06-01' existing = {
  parent: account
  name: 'default'
}

resource runTables 'Microsoft.Storage/storageAccounts/tableServices/tables@2025-06-01' = [
  for table in tables: {
    parent: tableService
    name: table
    dependsOn: [
      made
    ]
  }
]

resource queueService 'Microsoft.Storage/storageAccounts/queueServices@2025-06-01' existing = {
  parent: account
  name: 'default'
}

// The Functions host moves what it cannot read to a queue with this ending. Made here, it needs no right to make any.
resource requests 'Microsoft.Storage/storageAccounts/queueServices/queues@2025-06-01' = [
  for queue in [requestQueue, '${requestQueue}-poison']: {
    parent: queueService
    name: queue
    dependsOn: [
      made
    ]
  }
]

// Who deleted what, and figures. A line for each read and write would be a line for each call the toolkit makes.
resource blobLogs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!isThere) {
  scope: blobs
  name: 'runonce'
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'StorageDelete'
        enabled: true
      }
    ]
  }
  dependsOn: [
    softDelete
  ]
}

resource tableLogs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!isThere) {
  scope: tableService
  name: 'runonce'
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'StorageDelete'
        enabled: true
      }
    ]
  }
  dependsOn: [
    made
  ]
}

resource figures 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!isThere) {
  scope: account
  name: 'runonce'
  properties: {
    workspaceId: workspaceId
    metrics: [
      {
        category: 'Transaction'
        enabled: true
      }
    ]
  }
  dependsOn: [
    made
  ]
}
