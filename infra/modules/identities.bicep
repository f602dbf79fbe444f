// One identity for each part that needs rights of its own. The platform's pulls images and reads queue lengths, which
// takes rights to manage Service Bus; no code of a job ever runs with it.
param location string
param tags object
param onFunctions bool
param onJobs bool
param functionsName string
param jobsName string
param platformName string

resource functions 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = if (onFunctions) {
  name: functionsName
  location: location
  tags: tags
}

resource jobs 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = if (onJobs) {
  name: jobsName
  location: location
  tags: tags
}

resource platform 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = if (onJobs) {
  name: platformName
  location: location
  tags: tags
}

output functionsId string = onFunctions ? functions.id : ''
output functionsClientId string = functions.?properties.clientId ?? ''
output functionsPrincipalId string = functions.?properties.principalId ?? ''
output jobsId string = onJobs ? jobs.id : ''
output jobsClientId string = jobs.?properties.clientId ?? ''
output jobsPrincipalId string = jobs.?properties.principalId ?? ''
output platformId string = onJobs ? platform.id : ''
output platformPrincipalId string = platform.?properties.principalId ?? ''
