// Everything but the Container Apps jobs themselves, which `azd deploy` makes from jobs.bicep once their image exists.
targetScope = 'subscription'

@minLength(1)
@maxLength(64)
@description('Name of the azd environment; the resource group and all names derive from it.')
param environmentName string

@minLength(1)
@description('Azure region. It must offer Flex Consumption (functions, both) and Container Apps (jobs, both).')
param location string

@description('Who may read rows and messages with the runonce command line; empty grants nobody.')
param principalId string = ''

@allowed(['User', 'Group', 'ServicePrincipal'])
@description('A pipeline (ServicePrincipal) deploys, but gets no access to data.')
param principalType string = 'User'

@allowed(['functions', 'jobs', 'both'])
@description('Where the jobs run: a Function app, Container Apps jobs, or both at once (each fire time still runs once).')
param hostingPath string = 'functions'

@maxLength(40)
@description('Prefix of every lock and key. Default: runonce- and the environment name, in lower case.')
param namespace string = ''

@description('Puts everything behind private endpoints. Service Bus and the registry then need their Premium tiers.')
param useVirtualNetwork bool = false

@description('Where alerts are sent; empty makes the alerts without telling anybody.')
param alertEmail string = ''

@allowed([512, 2048, 4096])
@description('Memory of a Functions instance.')
param instanceMemoryMB int = 2048

@minValue(40)
@maxValue(1000)
@description('Most Functions instances at a time.')
param maximumInstanceCount int = 40

@description('Settings of your jobs, and overrides of the toolkit\'s own; for every host.')
param appSettings object = {}

var abbreviations = loadJsonContent('abbreviations.json')
var manifest = loadJsonContent('jobs.json')

var token = toLower(uniqueString(subscription().id, environmentName, location))
var tags = { 'azd-env-name': environmentName }
var chosenNamespace = empty(namespace) ? toLower('runonce-${replace(environmentName, '_', '-')}') : namespace
var onFunctions = hostingPath != 'jobs'
var onJobs = hostingPath != 'functions'
var usesServiceBus = !empty(manifest.handlers)

// What is the same on every host. Container Apps executions begin late, so where they run, a fire time counts as
// missed later, on the other host too: its recovery tick looks at the same rows.
var settings = union(
  manifest.settings,
  onJobs ? { RUNONCE_MISFIRE_GRACE: manifest.container_apps_settings.RUNONCE_MISFIRE_GRACE } : {},
  {
    RUNONCE_NAMESPACE: chosenNamespace
    RUNONCE_TRANSPORT: usesServiceBus ? 'servicebus' : 'storage'
  },
  appSettings
)

resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {
  name: '${abbreviations.resourceGroup}${environmentName}'
  location: location
  tags: tags
}

module monitoring 'modules/monitoring.bicep' = {
  name: 'monitoring'
  scope: group
  params: {
    location: location
    tags: tags
    workspaceName: '${abbreviations.logAnalytics}${token}'
    applicationInsightsName: '${abbreviations.applicationInsights}${token}'
  }
}

module identities 'modules/identities.bicep' = {
  name: 'identities'
  scope: group
  params: {
    location: location
    tags: tags
    onFunctions: onFunctions
    onJobs: onJobs
    functionsName: '${abbreviations.identity}func-${token}'
    jobsName: '${abbreviations.identity}jobs-${token}'
    platformName: '${abbreviations.identity}platform-${token}'
  }
}

module network 'modules/network.bicep' = if (useVirtualNetwork) {
  name: 'network'
  scope: group
  params: {
    location: location
    tags: tags
    name: '${abbreviations.virtualNetwork}${token}'
  }
}

module storage 'modules/storage.bicep' = {
  name: 'storage'
  scope: group
  params: {
    location: location
    tags: tags
    name: '${abbreviations.storageAccount}${token}'
    containers: manifest.storage.containers
    tables: manifest.storage.tables
    requestQueue: '${manifest.storage.queue_prefix}${chosenNamespace}${manifest.storage.queue_suffix}'
    packageContainer: onFunctions ? 'app-package' : ''
    isPrivate: useVirtualNetwork
  }
}

module serviceBus 'modules/servicebus.bicep' = if (usesServiceBus) {
  name: 'servicebus'
  scope: group
  params: {
    location: location
    tags: tags
    name: '${abbreviations.serviceBusNamespace}${token}'
    handlers: manifest.handlers
    topics: manifest.topics
    topicDuplicateDetectionWindow: manifest.duplicate_detection_window
    isPrivate: useVirtualNetwork
  }
}

module registry 'modules/registry.bicep' = if (onJobs) {
  name: 'registry'
  scope: group
  params: {
    location: location
    tags: tags
    name: '${abbreviations.containerRegistry}${token}'
    isPrivate: useVirtualNetwork
  }
}

module endpoints 'modules/endpoints.bicep' = if (useVirtualNetwork) {
  name: 'endpoints'
  scope: group
  params: {
    location: location
    tags: tags
    prefix: abbreviations.privateEndpoint
    virtualNetworkId: network.?outputs.id ?? ''
    subnetId: network.?outputs.endpointsSubnetId ?? ''
    storageId: storage.outputs.id
    serviceBusId: serviceBus.?outputs.id ?? ''
    registryId: registry.?outputs.id ?? ''
  }
}

module roles 'modules/roles.bicep' = {
  name: 'roles'
  scope: group
  params: {
    storageName: storage.outputs.name
    serviceBusName: usesServiceBus ? '${abbreviations.serviceBusNamespace}${token}' : ''
    registryName: onJobs ? '${abbreviations.containerRegistry}${token}' : ''
    applicationInsightsName: monitoring.outputs.applicationInsightsName
    functionsPrincipalId: identities.outputs.functionsPrincipalId
    jobsPrincipalId: identities.outputs.jobsPrincipalId
    platformPrincipalId: identities.outputs.platformPrincipalId
    operatorPrincipalId: principalType == 'ServicePrincipal' ? '' : principalId
    operatorPrincipalType: principalType
  }
  dependsOn: [
    serviceBus
    registry
  ]
}

module functions 'modules/functions.bicep' = if (onFunctions) {
  name: 'functions'
  scope: group
  params: {
    location: location
    tags: tags
    name: '${abbreviations.functionApp}${token}'
    planName: '${abbreviations.plan}${token}'
    identityId: identities.outputs.functionsId
    identityClientId: identities.outputs.functionsClientId
    storageName: storage.outputs.name
    packageContainer: 'app-package'
    serviceBusHost: serviceBus.?outputs.host ?? ''
    applicationInsightsName: monitoring.outputs.applicationInsightsName
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    subnetId: network.?outputs.functionsSubnetId ?? ''
    settings: settings
  }
  dependsOn: [
    roles
    endpoints
  ]
}

module jobsEnvironment 'modules/environment.bicep' = if (onJobs) {
  name: 'environment'
  scope: group
  params: {
    location: location
    tags: tags
    name: '${abbreviations.containerAppsEnvironment}${token}'
    workspaceId: monitoring.outputs.workspaceId
    subnetId: network.?outputs.jobsSubnetId ?? ''
  }
}

module alerts 'modules/alerts.bicep' = {
  name: 'alerts'
  scope: group
  params: {
    location: location
    tags: tags
    prefix: abbreviations.alert
    actionGroupName: '${abbreviations.actionGroup}${token}'
    email: alertEmail
    workspaceId: monitoring.outputs.workspaceId
    serviceBusId: serviceBus.?outputs.id ?? ''
    jobs: manifest.jobs
    namespace: chosenNamespace
  }
}

output AZURE_LOCATION string = location
output AZURE_RESOURCE_GROUP string = group.name
output DEPLOY_FUNCTIONS bool = onFunctions
output DEPLOY_JOBS bool = onJobs
output RUNONCE_NAMESPACE string = chosenNamespace
output AZURE_STORAGE_ACCOUNT_NAME string = storage.outputs.name
output AZURE_SERVICEBUS_NAMESPACE string = serviceBus.?outputs.name ?? ''
output AZURE_SERVICEBUS_HOST string = serviceBus.?outputs.host ?? ''
output AZURE_FUNCTION_APP_NAME string = functions.?outputs.name ?? ''
output AZURE_CONTAINER_REGISTRY_ENDPOINT string = registry.?outputs.endpoint ?? ''
output AZURE_CONTAINER_ENVIRONMENT_ID string = jobsEnvironment.?outputs.id ?? ''
output AZURE_JOBS_IDENTITY_ID string = identities.outputs.jobsId
output AZURE_JOBS_IDENTITY_CLIENT_ID string = identities.outputs.jobsClientId
output AZURE_PLATFORM_IDENTITY_ID string = identities.outputs.platformId
output AZURE_ACTION_GROUP_ID string = alerts.outputs.actionGroupId
