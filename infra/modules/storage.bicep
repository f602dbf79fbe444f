// What the toolkit needs in the storage account: containers, tables and the internal queue, by name.
param name string

@description('Blob containers of the toolkit.')
param containers string[]

@description('Tables of the toolkit.')
param tables string[]

@description('The internal queue of requests.')
param requestQueue string

@description('Container of the Function app\'s package; empty where there is none.')
param packageContainer string

@description('Where its logs go; empty leaves an account that was there already as it is.')
param workspaceId string

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
  }
]

// Who deleted what, and figures. A line for each read and write would be a line for each call the toolkit makes.
resource blobLogs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!empty(workspaceId)) {
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
}

resource tableLogs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!empty(workspaceId)) {
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
}

resource figures 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!empty(workspaceId)) {
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
}
