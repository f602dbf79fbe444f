// A private endpoint, with its DNS zone, for everything the jobs talk to.
param location string
param tags object
param prefix string
param virtualNetworkId string
param subnetId string
param storageId string

@description('Empty where there is no Service Bus.')
param serviceBusId string

@description('Empty where there is no registry.')
param registryId string

var storageSuffix = environment().suffixes.storage
var wanted = [
  { service: 'blob', zone: 'privatelink.blob.${storageSuffix}', target: storageId }
  { service: 'queue', zone: 'privatelink.queue.${storageSuffix}', target: storageId }
  { service: 'table', zone: 'privatelink.table.${storageSuffix}', target: storageId }
  { service: 'namespace', zone: 'privatelink.servicebus.windows.net', target: serviceBusId }
  { service: 'registry', zone: 'privatelink.azurecr.io', target: registryId }
]

resource zones 'Microsoft.Network/privateDnsZones@2024-06-01' = [for one in wanted: if (!empty(one.target)) {
  name: one.zone
  location: 'global'
  tags: tags
}]

resource links 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = [for (one, i) in wanted: if (!empty(one.target)) {
  parent: zones[i]
  name: 'link'
  location: 'global'
  tags: tags
  properties: {
    registrationEnabled: false
    virtualNetwork: { id: virtualNetworkId }
  }
}]

resource endpoints 'Microsoft.Network/privateEndpoints@2024-05-01' = [for one in wanted: if (!empty(one.target)) {
  name: '${prefix}${one.service}'
  location: location
  tags: tags
  properties: {
    subnet: { id: subnetId }
    privateLinkServiceConnections: [
      {
        name: one.service
        properties: {
          privateLinkServiceId: one.target
          groupIds: [one.service]
        }
      }
    ]
  }
}]

resource zoneGroups 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-05-01' = [for (one, i) in wanted: if (!empty(one.target)) {
  parent: endpoints[i]
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: one.service
        properties: { privateDnsZoneId: zones[i].id }
      }
    ]
  }
}]
