// The images of the jobs. It stays reachable from outside in a virtual network too, since `azd deploy` pushes to it;
// only identities get in.
param location string
param tags object
param name string
param isPrivate bool

resource registry 'Microsoft.ContainerRegistry/registries@2025-11-01' = {
  name: name
  location: location
  tags: tags
  sku: { name: isPrivate ? 'Premium' : 'Basic' }
  properties: {
    adminUserEnabled: false
    anonymousPullEnabled: false
    policies: {
      azureADAuthenticationAsArmPolicy: { status: 'enabled' }
    }
  }
}

output id string = registry.id
output endpoint string = registry.properties.loginServer
