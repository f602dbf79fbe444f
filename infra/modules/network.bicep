// A subnet for each host and one for the private endpoints.
param location string
param tags object
param name string

resource network 'Microsoft.Network/virtualNetworks@2024-05-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    addressSpace: { addressPrefixes: ['10.40.0.0/16'] }
    subnets: [
      {
        name: 'functions'
        properties: {
          addressPrefix: '10.40.0.0/24'
          delegations: [
            {
              name: 'flex'
              properties: { serviceName: 'Microsoft.App/environments' }
            }
          ]
        }
      }
      {
        name: 'jobs'
        properties: {
          addressPrefix: '10.40.2.0/23'
          delegations: [
            {
              name: 'environment'
              properties: { serviceName: 'Microsoft.App/environments' }
            }
          ]
        }
      }
      {
        name: 'endpoints'
        properties: {
          addressPrefix: '10.40.4.0/24'
          privateEndpointNetworkPolicies: 'Disabled'
        }
      }
    ]
  }
}

output id string = network.id
output functionsSubnetId string = '${network.id}/subnets/functions'
output jobsSubnetId string = '${network.id}/subnets/jobs'
output endpointsSubnetId string = '${network.id}/subnets/endpoints'
