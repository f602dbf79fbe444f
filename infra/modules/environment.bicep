// Where the Container Apps jobs run. Their logs go to the workspace by a diagnostic setting, which needs no key.
param location string
param tags object
param name string
param workspaceId string

@description('Empty without a virtual network.')
param subnetId string

resource managed 'Microsoft.App/managedEnvironments@2026-07-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    appLogsConfiguration: { destination: 'azure-monitor' }
    vnetConfiguration: empty(subnetId)
      ? null
      : {
          infrastructureSubnetId: subnetId
          internal: true
        }
    workloadProfiles: [
      {
        name: 'Consumption'
        workloadProfileType: 'Consumption'
      }
    ]
  }
}

resource logs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: managed
  name: 'logs'
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

output id string = managed.id
