// Where logs and metrics go. Both refuse keys: what sends telemetry does so with its identity.
import { texts } from '../types.bicep'

param location string
param tags texts
param workspaceName string
param workspaceId string

@description('The workspace is there already, and is left as it is.')
param isThere bool

@description('0 is no limit.')
param capGB int

param applicationInsightsName string

resource workspace 'Microsoft.OperationalInsights/workspaces@2025-07-01' = if (!isThere) {
  name: workspaceName
  location: location
  tags: tags
  properties: {
    sku: { name: 'PerGB2018' }
    retentionInDays: 30
    workspaceCapping: { dailyQuotaGb: capGB == 0 ? -1 : capGB }
    features: { disableLocalAuth: true }
  }
}

resource audit 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!isThere) {
  scope: workspace
  name: 'runonce'
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        categoryGroup: 'audit'
        enabled: true
      }
    ]
  }
}

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' = {
  name: applicationInsightsName
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspaceId
    DisableLocalAuth: true
  }
  dependsOn: [
    workspace
  ]
}
