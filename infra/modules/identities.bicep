// One identity for each part that needs rights of its own. The platform's pulls images and reads queue lengths, which
// takes rights to manage queues; no code of a job ever runs with it.
import { texts } from '../types.bicep'

param location string
param tags texts
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

output jobsId string = onJobs ? jobs.id : ''
output jobsClientId string = jobs.?properties.clientId ?? ''
output platformId string = onJobs ? platform.id : ''
