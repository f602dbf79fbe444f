// A private endpoint for everything the jobs talk to, with its DNS zone: made, or looked up where zones are kept
// centrally. Written for public Azure; elsewhere the zones of Service Bus and the registry have other names.
import { place, texts } from '../types.bicep'

param location string
param tags texts
param prefix string
param virtualNetworkId string
param subnetId string

@description('The resource group whose zones are used, and linked there; empty makes and links them here.')
param zonesGroupId string

param here place
param storagePlace place
param storageName string

@description('Empty where there is no Service Bus.')
param serviceBusName string

@description('Empty where there is no registry.')
param registryName string

var storageSuffix = environment().suffixes.storage
var account = { place: storagePlace, type: 'Microsoft.Storage/storageAccounts', name: storageName }
var wanted = filter(
  [
    { service: 'blob', zone: 'privatelink.blob.${storageSuffix}', target: account }
    { service: 'queue', zone: 'privatelink.queue.${storageSuffix}', target: account }
    { service: 'table', zone: 'privatelink.table.${storageSuffix}', target: account }
    {
      service: 'namespace'
      zone: 'privatelink.servicebus.windows.net'
      target: { place: here, type: 'Microsoft.ServiceBus/namespaces', name: serviceBusName }
    }
    {
      service: 'registry'
      zone: 'privatelink.azurecr.io'
      target: { place: here, type: 'Microsoft.ContainerRegistry/registries', name: registryName }
    }
  ],
  one => (!empty(one.target.name))
)
var madeZones = empty(zonesGroupId) ? map(wanted, one => (one.zone)) : []

resource zones 'Microsoft.Network/privateDnsZones@2024-06-01' = [
  for zone in madeZones: {
    name: zone
    location: 'global'
    tags: tags
  }
]

resource links 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = [
  for (zone, i) in madeZones: {
    parent: zones[i]
    name: 'link'
    location: 'global'
    tags: tags
    properties: {
      registrationEnabled: false
      virtualNetwork: { id: virtualNetworkId }
    }
  }
]

resource endpoints 'Microsoft.Network/privateEndpoints@2025-07-01' = [
  for one in wanted: {
    name: '${prefix}${one.service}'
    location: location
    tags: tags
    properties: {
      subnet: { id: subnetId }
      privateLinkServiceConnections: [
        {
          name: one.service
          properties: {
            privateLinkServiceId: resourceId(
              one.target.place.subscription,
              one.target.place.group,
              one.target.type,
              one.target.name
            )
            groupIds: [one.service]
          }
        }
      ]
    }
  }
]

resource zoneGroups 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2025-07-01' = [
  for (one, i) in wanted: {
    parent: endpoints[i]
    name: 'default'
    properties: {
      privateDnsZoneConfigs: [
        {
          name: one.service
          properties: {
            privateDnsZoneId: empty(zonesGroupId)
              ? resourceId('Microsoft.Network/privateDnsZones', one.zone)
              : '${zonesGroupId}/providers/Microsoft.Network/privateDnsZones/${one.zone}'
          }
        }
      ]
    }
    dependsOn: [
      zones
    ]
  }
]
