// Where the Container Apps jobs run. Their logs go to the workspace by a diagnostic setting, which needs no key.
import { texts } from '../types.bicep'

param location string
param tags texts
param name string
param workspaceId string

@description('Empty without a virtual network.')
param subnetId string

@description('Needs a virtual network.')
param zoneRedundant bool

resource managed 'Microsoft.App/managedEnvironments@2026-01-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    appLogsConfiguration: { destination: 'azure-monitor' }
    zoneRedundant: zoneRedundant && !empty(subnetId)
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

output id string = managed.id
