# APIs, accounts and rights. docs/deploy-google.md gives the reason for each.

locals {
  has_cluster = var.cluster != null
  has_groups  = length(var.groups) > 0
  has_events  = var.events && local.has_groups
  has_secrets = length(var.secrets) > 0

  account = coalesce(var.account, var.name_prefix == "hf" ? "hostfactory-provisioner" : "${var.name_prefix}-loop")

  machines_role = yamldecode(file("${path.module}/roles/machines.yaml"))
  events_role   = yamldecode(file("${path.module}/roles/events.yaml"))
  cluster_role  = yamldecode(file("${path.module}/roles/cluster.yaml"))

  apis = toset(concat(
    [
      "compute.googleapis.com",
      "iam.googleapis.com",
      "logging.googleapis.com",
      "monitoring.googleapis.com",
    ],
    local.has_cluster ? [
      "artifactregistry.googleapis.com",
      "container.googleapis.com",
      "containerfilesystem.googleapis.com", # image streaming
      "iamcredentials.googleapis.com",
    ] : [],
    local.has_events ? ["pubsub.googleapis.com"] : [],
    var.share != null ? ["file.googleapis.com"] : [],
    local.has_secrets ? ["secretmanager.googleapis.com"] : [],
  ))
  kubernetes_member = "serviceAccount:${var.project_id}.svc.id.goog[${var.kubernetes_account}]"
  cloudservices     = "serviceAccount:${data.google_project.this.number}@cloudservices.gserviceaccount.com"
}

# A separate resource, because the project's number is read after it. If the number depended on all APIs, it would be unknown
# whenever another API is enabled, and Terraform would take the rights of Google's agent away and give them again.
resource "google_project_service" "projects" {
  project            = var.project_id
  service            = "cloudresourcemanager.googleapis.com"
  disable_on_destroy = false
}

data "google_project" "this" {
  project_id = var.project_id

  depends_on = [google_project_service.projects]
}

resource "google_project_service" "this" {
  for_each = local.apis

  project            = var.project_id
  service            = each.value
  disable_on_destroy = false # others in the project may use it

  depends_on = [google_project_service.projects]
}

# --- the loop ---------------------------------------------------------------------------------------------------------

resource "google_service_account" "loop" {
  project      = var.project_id
  account_id   = local.account
  display_name = "HostFactory provisioner"

  depends_on = [google_project_service.this]
}

resource "google_project_iam_custom_role" "machines" {
  count = local.has_groups ? 1 : 0

  project     = var.project_id
  role_id     = "${replace(var.name_prefix, "-", "_")}_provisioner"
  title       = local.machines_role.title
  description = local.machines_role.description
  stage       = local.machines_role.stage
  permissions = local.machines_role.includedPermissions

  depends_on = [google_project_service.this]
}

resource "google_project_iam_member" "machines" {
  count = local.has_groups ? 1 : 0

  project = var.project_id
  role    = google_project_iam_custom_role.machines[0].id
  member  = google_service_account.loop.member
}

resource "google_project_iam_custom_role" "cluster" {
  count = local.has_dns ? 1 : 0

  project     = var.project_id
  role_id     = "${replace(var.name_prefix, "-", "_")}_provisioner_cluster"
  title       = local.cluster_role.title
  description = local.cluster_role.description
  stage       = local.cluster_role.stage
  permissions = local.cluster_role.includedPermissions

  depends_on = [google_project_service.this]
}

resource "google_project_iam_member" "cluster" {
  count = local.has_dns ? 1 : 0

  project = var.project_id
  role    = google_project_iam_custom_role.cluster[0].id
  member  = google_service_account.loop.member
}

resource "google_service_account_iam_member" "workload_identity" {
  count = local.has_cluster ? 1 : 0

  service_account_id = google_service_account.loop.name
  role               = "roles/iam.workloadIdentityUser"
  member             = local.kubernetes_member

  depends_on = [google_container_cluster.this] # the identity pool comes with the first cluster
}

# --- nodes and machines -----------------------------------------------------------------------------------------------

resource "google_service_account" "nodes" {
  count = local.has_cluster ? 1 : 0

  project      = var.project_id
  account_id   = "${var.name_prefix}-nodes"
  display_name = "Nodes of the HostFactory cluster"

  depends_on = [google_project_service.this]
}

resource "google_project_iam_member" "nodes" {
  for_each = toset(local.has_cluster ? ["roles/container.defaultNodeServiceAccount", "roles/artifactregistry.reader"] : [])

  project = var.project_id
  role    = each.value
  member  = google_service_account.nodes[0].member
}

resource "google_service_account" "machines" {
  count = local.has_groups ? 1 : 0

  project      = var.project_id
  account_id   = "${var.name_prefix}-machines"
  display_name = "Instances of HostFactory"

  depends_on = [google_project_service.this]
}

resource "google_project_iam_member" "telemetry" {
  for_each = toset(local.has_groups ? ["roles/logging.logWriter", "roles/monitoring.metricWriter"] : [])

  project = var.project_id
  role    = each.value
  member  = google_service_account.machines[0].member
}

# Groups make their instances, and GKE its nodes, as this service agent of Google's. An organization's policy may take its
# default role away.
resource "google_project_iam_member" "agent" {
  count = local.has_groups || local.has_cluster ? 1 : 0

  project = var.project_id
  role    = "roles/compute.instanceAdmin.v1"
  member  = local.cloudservices
}

resource "google_service_account_iam_member" "agent" {
  for_each = merge(
    local.has_groups ? { machines = google_service_account.machines[0].name } : {},
    local.has_cluster ? { nodes = google_service_account.nodes[0].name } : {},
  )

  service_account_id = each.value
  role               = "roles/iam.serviceAccountUser"
  member             = local.cloudservices
}
