// What main.bicep, jobs.bicep and the modules hand to one another. An entry of the manifest has exactly these keys
// (a test compares them with what the code writes), so a misspelt one is the compiler's to find.

@export()
@description('Names and values, all of them text: tags, settings.')
type texts = { *: string }

@export()
@description('A scheduled job of the manifest.')
type scheduledJob = {
  name: string
  resource: string
  summary: string
  schedule: string
  schedule_setting: string
  time_zone: string
  functions_timer: string
  container_apps_cron: string
  container_apps_refusal: string
  misfire: string
  max_runtime: int
  retries: int
  retry_delay: int
  on_abandoned: string
  replica_timeout: int
  replica_retry_limit: int
  cpu: string?
  memory: string?
}

@export()
@description('A queue handler of the manifest. A subscription forwards to the queue, or is read beside it.')
type queueHandler = {
  name: string
  resource: string
  summary: string
  queue: string
  topic: string
  subscription: string
  forward: bool
  key: string
  concurrency: int
  max_messages: int
  max_runtime: int
  retries: int
  retry_delay: int
  lock: string
  on_abandoned: string
  lock_duration: string
  max_delivery_count: int
  default_ttl: string
  duplicate_detection_window: string
  replica_timeout: int
  replica_retry_limit: int
  cpu: string?
  memory: string?
}

@export()
@description('Names in place of the made-up ones; what is empty or left out is made up.')
type resourceNames = {
  resourceGroup: string?
  functionApp: string?
  plan: string?
  storageAccount: string?
  serviceBusNamespace: string?
  containerRegistry: string?
  containerAppsEnvironment: string?
  logAnalytics: string?
  applicationInsights: string?
  functionsIdentity: string?
  jobsIdentity: string?
  platformIdentity: string?
  virtualNetwork: string?
  actionGroup: string?
}

@export()
@description('Ids of what is there already and is used in place of one that is made; what is empty is made.')
type resourcesThere = {
  storageAccount: string?
  logAnalytics: string?
  functionsSubnet: string?
  jobsSubnet: string?
  endpointsSubnet: string?

  @description('The resource group that holds the private DNS zones.')
  dnsZonesGroup: string?
}

@export()
@description('Where a resource is.')
type place = {
  subscription: string
  group: string
}
