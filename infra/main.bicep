// Everything but the Container Apps jobs themselves, which `azd deploy` makes from jobs.bicep once their image exists.
targetScope = 'subscription'

import { resourceNames, resourcesThere, texts } from 'types.bicep'

@minLength(1)
@maxLength(64)
@description('Name of the azd environment; the resource group and all names derive from it.')
param environmentName string

// Where Flex Consumption is offered. Container Apps are in nearly all of these, and say so where they are not.
@allowed([
  'australiaeast'
  'australiasoutheast'
  'brazilsouth'
  'canadacentral'
  'centralindia'
  'centralus'
  'eastasia'
  'eastus'
  'eastus2'
  'francecentral'
  'germanywestcentral'
  'italynorth'
  'japaneast'
  'koreacentral'
  'northcentralus'
  'northeurope'
  'norwayeast'
  'southafricanorth'
  'southcentralus'
  'southeastasia'
  'southindia'
  'spaincentral'
  'swedencentral'
  'uaenorth'
  'uksouth'
  'ukwest'
  'westcentralus'
  'westeurope'
  'westus'
  'westus2'
  'westus3'
])
@metadata({ azd: { type: 'location' } })
@description('Azure region.')
param location string

@description('Who may look with the runonce command line, as operatorAccess says; empty grants nobody.')
param principalId string = ''

@allowed(['User', 'Group', 'ServicePrincipal'])
@description('A pipeline (ServicePrincipal) deploys, but gets no access to data.')
param principalType string = 'User'

@allowed(['none', 'read', 'write'])
@description('What the operator may do with data: nothing; read rows, blobs and requests; also change them, and read and send messages.')
param operatorAccess string = 'read'

@allowed(['functions', 'jobs', 'both'])
@description('Where the jobs run: a Function app, Container Apps jobs, or both at once (each fire time still runs once).')
param hostingPath string = 'functions'

@maxLength(40)
@description('Prefix of every lock and key. Default: runonce- and the environment name, in lower case.')
param namespace string = ''

@description('Puts storage and Service Bus behind private endpoints. Service Bus and the registry then need their Premium tiers. The Function app\'s deployment endpoint and the registry stay reachable from outside, by identity.')
param useVirtualNetwork bool = false

@description('Spreads the plan, the environment (in a virtual network) and a Premium registry over availability zones.')
param zoneRedundant bool = false

@allowed([
  ''
  'Standard_LRS'
  'Standard_ZRS'
  'Standard_GRS'
  'Standard_GZRS'
  'Standard_RAGRS'
  'Standard_RAGZRS'
])
@description('Redundancy of the storage account. Default: zone-redundant where the region has zones, else locally.')
param storageSku string = ''

@description('Where alerts are sent; empty makes the alerts without telling anybody.')
param alertEmail string = ''

@allowed([512, 2048, 4096])
@description('Memory of a Functions instance.')
param instanceMemoryMB int = 512

@minValue(1)
@maxValue(1000)
@description('Most Functions instances at a time, for each function that scales on its own.')
param maximumInstanceCount int = 40

@allowed(['Recreate', 'RollingUpdate'])
@description('What a deployment does to running functions: ends them, or lets them finish.')
param siteUpdateStrategy string = 'Recreate'

@minValue(0)
@description('GB a day that the workspace takes before it stops; 0 is no limit. Ignored for a workspace that is there already.')
param logCapGB int = 1

@minValue(0)
@description('Budget of the resource group for a month, in the currency of the bill; 0 makes none.')
param monthlyBudget int = 0

@description('First day of the budget\'s first month; the check before provisioning sets it once.')
param budgetStart string = ''

@minValue(1)
@maxValue(100)
@description('Images that stay in the registry.')
param imagesKept int = 10

@description('Address of a Key Vault\'s secret: the webhook that is told of incidents. Empty is none.')
param notifyUrlSecret string = ''

@description('Address of a Key Vault\'s secret: the PostgreSQL or Redis that holds the leases. Empty is the storage account.')
param leasesSecret string = ''

@description('Names in place of the made-up ones.')
param names resourceNames = {}

@description('What is there already.')
param there resourcesThere = {}

@description('Settings of your jobs, and overrides of the toolkit\'s own; for every host.')
param appSettings texts = {}

var abbreviations = loadJsonContent('abbreviations.json')
var manifest = loadJsonContent('jobs.json')

// Regions with Flex Consumption and without availability zones.
var withoutZones = ['australiasoutheast', 'northcentralus', 'southindia', 'ukwest', 'westcentralus', 'westus']

var token = toLower(uniqueString(subscription().id, environmentName, location))
var tags = { 'azd-env-name': environmentName }
var chosenNamespace = empty(namespace) ? toLower('runonce-${replace(environmentName, '_', '-')}') : namespace
var onFunctions = hostingPath != 'jobs'
var onJobs = hostingPath != 'functions'
var usesServiceBus = !empty(manifest.handlers)

// Every name is known here, before anything is made: so a preview can look into every module.
var named = union(
  {
    resourceGroup: '${abbreviations.resourceGroup}${environmentName}'
    functionApp: '${abbreviations.functionApp}${token}'
    plan: '${abbreviations.plan}${token}'
    storageAccount: '${abbreviations.storageAccount}${token}'
    serviceBusNamespace: '${abbreviations.serviceBusNamespace}${token}'
    containerRegistry: '${abbreviations.containerRegistry}${token}'
    containerAppsEnvironment: '${abbreviations.containerAppsEnvironment}${token}'
    logAnalytics: '${abbreviations.logAnalytics}${token}'
    applicationInsights: '${abbreviations.applicationInsights}${token}'
    functionsIdentity: '${abbreviations.identity}func-${token}'
    jobsIdentity: '${abbreviations.identity}jobs-${token}'
    platformIdentity: '${abbreviations.identity}platform-${token}'
    virtualNetwork: '${abbreviations.virtualNetwork}${token}'
    actionGroup: '${abbreviations.actionGroup}${token}'
  },
  toObject(filter(items(names), name => (!empty(name.value))), name => (name.key), name => (name.value))
)
var packageContainer = 'app-package-${token}'
var here = { subscription: subscription().subscriptionId, group: named.resourceGroup }

// An id is /subscriptions/SUBSCRIPTION/resourceGroups/GROUP/providers/PROVIDER/TYPE/NAME.
var storageThere = there.?storageAccount ?? ''
var storagePlace = empty(storageThere)
  ? here
  : { subscription: split(storageThere, '/')[2], group: split(storageThere, '/')[4] }
var storageName = empty(storageThere) ? named.storageAccount : last(split(storageThere, '/'))
var workspaceThere = there.?logAnalytics ?? ''
var workspaceId = empty(workspaceThere)
  ? '${group.id}/providers/Microsoft.OperationalInsights/workspaces/${named.logAnalytics}'
  : workspaceThere
var subnetThere = there.?endpointsSubnet ?? ''
var networkId = empty(subnetThere)
  ? '${group.id}/providers/Microsoft.Network/virtualNetworks/${named.virtualNetwork}'
  : split(subnetThere, '/subnets/')[0]
var subnets = empty(subnetThere)
  ? {
      functions: '${networkId}/subnets/functions'
      jobs: '${networkId}/subnets/jobs'
      endpoints: '${networkId}/subnets/endpoints'
    }
  : {
      functions: there.?functionsSubnet ?? ''
      jobs: there.?jobsSubnet ?? ''
      endpoints: subnetThere
    }

// What is the same on every host. Container Apps executions begin late, so where they run, a fire time counts as
// missed later, on the other host too: its recovery tick looks at the same rows.
var settings = union(
  manifest.settings,
  onJobs ? { RUNONCE_MISFIRE_GRACE: manifest.container_apps_settings.RUNONCE_MISFIRE_GRACE } : {},
  {
    RUNONCE_NAMESPACE: chosenNamespace
    RUNONCE_QUEUE_NAMES: 'plain' // the broker is this environment's alone
    RUNONCE_TRANSPORT: usesServiceBus ? 'servicebus' : 'storage'
  },
  appSettings
)

resource group 'Microsoft.Resources/resourceGroups@2025-04-01' = {
  name: named.resourceGroup
  location: location
  tags: tags
}

module monitoring 'modules/monitoring.bicep' = {
  scope: group
  params: {
    location: location
    tags: tags
    workspaceName: named.logAnalytics
    workspaceId: workspaceId
    isThere: !empty(workspaceThere)
    capGB: logCapGB
    applicationInsightsName: named.applicationInsights
  }
}

module identities 'modules/identities.bicep' = {
  scope: group
  params: {
    location: location
    tags: tags
    onFunctions: onFunctions
    onJobs: onJobs
    functionsName: named.functionsIdentity
    jobsName: named.jobsIdentity
    platformName: named.platformIdentity
  }
}

module network 'modules/network.bicep' = if (useVirtualNetwork && empty(subnetThere)) {
  scope: group
  params: {
    location: location
    tags: tags
    name: named.virtualNetwork
    workspaceId: workspaceId
  }
  dependsOn: [
    monitoring
  ]
}

module storageAccount 'modules/storage-account.bicep' = if (empty(storageThere)) {
  scope: group
  params: {
    location: location
    tags: tags
    name: storageName
    sku: empty(storageSku) ? (contains(withoutZones, location) ? 'Standard_LRS' : 'Standard_ZRS') : storageSku
    isPrivate: useVirtualNetwork
  }
}

module storage 'modules/storage.bicep' = {
  scope: resourceGroup(storagePlace.subscription, storagePlace.group)
  params: {
    name: storageName
    containers: manifest.storage.containers
    tables: manifest.storage.tables
    requestQueue: '${manifest.storage.queue_prefix}${chosenNamespace}${manifest.storage.queue_suffix}'
    packageContainer: onFunctions ? packageContainer : ''
    workspaceId: empty(storageThere) ? workspaceId : ''
  }
  dependsOn: [
    storageAccount
    monitoring
  ]
}

module storageRoles 'modules/storage-roles.bicep' = {
  scope: resourceGroup(storagePlace.subscription, storagePlace.group)
  params: {
    storageName: storageName
    identities: here
    functionsIdentity: onFunctions ? named.functionsIdentity : ''
    jobsIdentity: onJobs ? named.jobsIdentity : ''
    operatorPrincipalId: principalType == 'ServicePrincipal' || operatorAccess == 'none' ? '' : principalId
    operatorPrincipalType: principalType
    operatorWrites: operatorAccess == 'write'
    containers: manifest.storage.containers
    tables: manifest.storage.tables
    requestQueue: '${manifest.storage.queue_prefix}${chosenNamespace}${manifest.storage.queue_suffix}'
  }
  dependsOn: [
    identities
    storage
  ]
}

module serviceBus 'modules/servicebus.bicep' = if (usesServiceBus) {
  scope: group
  params: {
    location: location
    tags: tags
    name: named.serviceBusNamespace
    handlers: manifest.handlers
    topics: manifest.topics
    topicDuplicateDetectionWindow: manifest.duplicate_detection_window
    isPrivate: useVirtualNetwork
    workspaceId: workspaceId
  }
  dependsOn: [
    monitoring
  ]
}

module serviceBusRoles 'modules/servicebus-roles.bicep' = if (usesServiceBus) {
  scope: group
  params: {
    serviceBusName: named.serviceBusNamespace
    handlers: manifest.handlers
    topics: manifest.topics
    functionsIdentity: onFunctions ? named.functionsIdentity : ''
    jobsIdentity: onJobs ? named.jobsIdentity : ''
    platformIdentity: onJobs ? named.platformIdentity : ''
    operatorPrincipalId: principalType == 'ServicePrincipal' || operatorAccess != 'write' ? '' : principalId
    operatorPrincipalType: principalType
  }
  dependsOn: [
    identities
    serviceBus
  ]
}

module registry 'modules/registry.bicep' = if (onJobs) {
  scope: group
  params: {
    location: location
    tags: tags
    name: named.containerRegistry
    pullIdentity: named.platformIdentity
    imagesKept: imagesKept
    isPrivate: useVirtualNetwork
    zoneRedundant: zoneRedundant
    workspaceId: workspaceId
  }
  dependsOn: [
    identities
    monitoring
  ]
}

module endpoints 'modules/endpoints.bicep' = if (useVirtualNetwork) {
  scope: group
  params: {
    location: location
    tags: tags
    prefix: abbreviations.privateEndpoint
    virtualNetworkId: networkId
    subnetId: subnets.endpoints
    zonesGroupId: there.?dnsZonesGroup ?? ''
    here: here
    storagePlace: storagePlace
    storageName: storageName
    serviceBusName: usesServiceBus ? named.serviceBusNamespace : ''
    registryName: onJobs ? named.containerRegistry : ''
  }
  dependsOn: [
    network
    storage
    serviceBus
    registry
  ]
}

module functions 'modules/functions.bicep' = if (onFunctions) {
  scope: group
  params: {
    location: location
    tags: tags
    name: named.functionApp
    planName: named.plan
    identityName: named.functionsIdentity
    storageName: storageName
    packageContainer: packageContainer
    serviceBusName: usesServiceBus ? named.serviceBusNamespace : ''
    applicationInsightsName: named.applicationInsights
    workspaceId: workspaceId
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    siteUpdateStrategy: siteUpdateStrategy
    zoneRedundant: zoneRedundant
    subnetId: useVirtualNetwork ? subnets.functions : ''
    settings: settings
    notifyUrlSecret: notifyUrlSecret
    leasesSecret: leasesSecret
  }
  dependsOn: [
    monitoring
    storageRoles
    serviceBusRoles
    endpoints
  ]
}

module jobsEnvironment 'modules/environment.bicep' = if (onJobs) {
  scope: group
  params: {
    location: location
    tags: tags
    name: named.containerAppsEnvironment
    workspaceId: workspaceId
    subnetId: useVirtualNetwork ? subnets.jobs : ''
    zoneRedundant: zoneRedundant
  }
  dependsOn: [
    monitoring
    network
  ]
}

module alerts 'modules/alerts.bicep' = {
  scope: group
  params: {
    location: location
    tags: tags
    prefix: abbreviations.alert
    actionGroupName: named.actionGroup
    email: alertEmail
    workspaceId: workspaceId
    serviceBusName: usesServiceBus ? named.serviceBusNamespace : ''
    applicationInsightsName: named.applicationInsights
    containerAppsEnvironmentName: named.containerAppsEnvironment
    jobs: manifest.jobs
    namespace: chosenNamespace
    monthlyBudget: monthlyBudget
    budgetStart: budgetStart
  }
  dependsOn: [
    monitoring
    serviceBus
  ]
}

output AZURE_LOCATION string = location
output AZURE_RESOURCE_GROUP string = group.name
output DEPLOY_FUNCTIONS bool = onFunctions
output DEPLOY_JOBS bool = onJobs
output RUNONCE_NAMESPACE string = chosenNamespace

@description('The same, kept apart: the check before provisioning compares with it.')
output DEPLOYED_NAMESPACE string = chosenNamespace
output AZURE_STORAGE_ACCOUNT_NAME string = storageName
output AZURE_SERVICEBUS_NAMESPACE string = usesServiceBus ? named.serviceBusNamespace : ''
output AZURE_SERVICEBUS_HOST string = serviceBus.?outputs.host ?? ''
output AZURE_FUNCTION_APP_NAME string = onFunctions ? named.functionApp : ''
output AZURE_CONTAINER_REGISTRY_ENDPOINT string = registry.?outputs.endpoint ?? ''
output AZURE_CONTAINER_ENVIRONMENT_ID string = jobsEnvironment.?outputs.id ?? ''
output AZURE_JOBS_IDENTITY_ID string = identities.outputs.jobsId
output AZURE_JOBS_IDENTITY_CLIENT_ID string = identities.outputs.jobsClientId
output AZURE_PLATFORM_IDENTITY_ID string = identities.outputs.platformId
output AZURE_ACTION_GROUP_ID string = alerts.outputs.actionGroupId

@description('The settings of your jobs for jobs.bicep, in a form that passes through an environment variable unharmed.')
output JOB_SETTINGS string = base64(string(appSettings))
