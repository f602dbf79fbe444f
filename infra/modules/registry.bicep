// The images of the jobs. It stays reachable from outside in a virtual network too, since `azd deploy` pushes to it;
// only identities get in.
import { texts } from '../types.bicep'

param location string
param tags texts
param name string

@description('Name of the identity that pulls.')
param pullIdentity string

@description('Newest images of each name that stay.')
param imagesKept int

param isPrivate bool
param zoneRedundant bool
param workspaceId string

var acrPull = '7f951dda-4ed3-4680-a7ca-43fe172d538d'

// Every deployment pushes an image. The filter is one argument of `acr purge`; whatever is older than the newest ones
// goes, once a week. A job that was left behind would lose its image, which is one more reason not to leave any.
var purge = 'version: v1.1.0\nsteps:\n  - cmd: acr purge --filter ".*:.*" --ago 30d --keep ${imagesKept} --untagged\n    disableWorkingDirectoryOverride: true\n    timeout: 3600\n'

resource registry 'Microsoft.ContainerRegistry/registries@2025-11-01' = {
  name: name
  location: location
  tags: tags
  sku: { name: isPrivate ? 'Premium' : 'Basic' }
  properties: {
    adminUserEnabled: false
    anonymousPullEnabled: false
    zoneRedundancy: isPrivate && zoneRedundant ? 'Enabled' : 'Disabled'
    policies: {
      azureADAuthenticationAsArmPolicy: { status: 'enabled' }
    }
  }
}

resource retention 'Microsoft.ContainerRegistry/registries/tasks@2019-04-01' = {
  parent: registry
  name: 'retention'
  location: location
  tags: tags
  properties: {
    status: 'Enabled'
    platform: {
      os: 'Linux'
      architecture: 'amd64'
    }
    step: {
      type: 'EncodedTask'
      encodedTaskContent: base64(purge)
    }
    trigger: {
      timerTriggers: [
        {
          name: 'weekly'
          schedule: '0 4 * * 0'
          status: 'Enabled'
        }
      ]
    }
  }
}

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = {
  name: pullIdentity
}

resource pull 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: registry
  name: guid(registry.id, identity.id, acrPull)
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', acrPull)
  }
}

resource logs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: registry
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

output endpoint string = registry.properties.loginServer
