// The account that holds leases, rows, the internal queue and the jobs' data; no key opens it.
param location string
param tags object
param name string

@description('Blob containers of the toolkit.')
param containers array

@description('Tables of the toolkit.')
param tables array

@description('The internal queue of requests.')
param requestQueue string

@description('Container of the Function app\'s package; empty where there is none.')
param packageContainer string

param isPrivate bool

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' = {
  name: name
  location: location
  tags: tags
  kind: 'StorageV2'
  sku: { name: 'Standard_ZRS' }
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

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2025-06-01' = {
  parent: account
  name: 'default'
  properties: {
    deleteRetentionPolicy: {
      enabled: true
      days: 7
    }
  }
}

resource blobContainers 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' = [for container in concat(containers, empty(packageContainer) ? [] : [packageContainer]): {
  parent: blobs
  name: container
  properties: { publicAccess: 'None' }
}]

resource tableService 'Microsoft.Storage/storageAccounts/tableServices@2025-06-01' = {
  parent: account
  name: 'default'
}

resource runTables 'Microsoft.Storage/storageAccounts/tableServices/tables@2025-06-01' = [for table in tables: {
  parent: tableService
  name: table
}]

resource queueService 'Microsoft.Storage/storageAccounts/queueServices@2025-06-01' = {
  parent: account
  name: 'default'
}

resource requests 'Microsoft.Storage/storageAccounts/queueServices/queues@2025-06-01' = {
  parent: queueService
  name: requestQueue
}

output id string = account.id
output name string = account.name
