/**
 * Copyright 2026 The HostFactory provisioner authors
 *
 * Licensed under the Apache License, Version 2.0 (the "License");
 * you may not use this file except in compliance with the License.
 * You may obtain a copy of the License at
 *
 *      http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software
 * distributed under the License is distributed on an "AS IS" BASIS,
 * WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
 * See the License for the specific language governing permissions and
 * limitations under the License.
 */

locals {
  # This label allows for billing report tracking based on module.
  labels = merge(var.labels, { ghpc_module = "hostfactory-provisioner", ghpc_role = "scheduler" })
}

locals {
  has_groups  = length(var.groups) > 0
  has_events  = var.events && local.has_groups
  is_dns      = length(var.pods) > 0 && endswith(coalesce(var.cluster_endpoint, "-"), ".gke.goog")
  member      = "serviceAccount:${var.service_account_email}"
  role_prefix = "${replace(var.deployment_name, "-", "_")}_provisioner"
  events_name = "${var.name_prefix}-events"

  # The rights are in files that a test compares with every call of the provisioner.
  roles = { for name in ["machines", "events", "cluster"] : name => yamldecode(file("${path.module}/files/roles/${name}.yaml")) }
  rbac  = { for document in split("\n---\n", file("${path.module}/files/rbac.yaml")) : yamldecode(document).kind => yamldecode(document) }

  ego_environment = merge(
    { HF_EGO_MASTER = var.ego_master.name },
    var.ego_master.address == null ? {} : { HF_EGO_MASTER_ADDRESS = var.ego_master.address },
    var.ego_master.attributes == null ? {} : { HF_EGO_ATTRIBUTES = var.ego_master.attributes },
  )
  ego_profile = "${var.symphony_install_dir}/profile.platform"
}

module "settings" {
  source = "./settings"

  project_id     = var.project_id
  provider_name  = var.instance
  name_prefix    = var.name_prefix
  endpoint       = var.cluster_endpoint == null ? null : "https://${var.cluster_endpoint}"
  ca_certificate = var.cluster_ca_certificate == null || local.is_dns ? null : base64decode(var.cluster_ca_certificate)
  pods = { for name, pool in var.pods : name => merge(pool, {
    env = merge(local.ego_environment, { HF_EGO_PROFILE = local.ego_profile }, pool.env)
    # A pod is not root: it writes the address into EGO's hosts file, but not into its own.
    host_aliases = var.ego_master.address == null ? {} : {
      (var.ego_master.address) = distinct([var.ego_master.name, split(".", var.ego_master.name)[0]])
    }
    image     = coalesce(pool.image, "of the pool's own spec")
    cpus      = coalesce(pool.cpus, 1)
    memory_mb = coalesce(pool.memory_mb, 1)
  }) }
  groups       = { for name, group in var.groups : name => merge(group, { zone = coalesce(group.zone, var.zone) }) }
  templates    = var.templates
  subscription = local.has_events ? local.events_name : null
}

# --- the loop's rights ------------------------------------------------------------------------------------------------

resource "google_project_iam_custom_role" "this" {
  for_each = toset(concat(local.has_groups ? ["machines"] : [], local.has_events ? ["events"] : [], local.is_dns ? ["cluster"] : []))

  project     = var.project_id
  role_id     = "${local.role_prefix}_${each.key}"
  title       = local.roles[each.key].title
  description = local.roles[each.key].description
  stage       = local.roles[each.key].stage
  permissions = local.roles[each.key].includedPermissions
}

resource "google_project_iam_member" "this" {
  for_each = toset(concat(local.has_groups ? ["machines"] : [], local.is_dns ? ["cluster"] : []))

  project = var.project_id
  role    = google_project_iam_custom_role.this[each.key].id
  member  = local.member
}

# --- events -----------------------------------------------------------------------------------------------------------

resource "google_pubsub_topic" "events" {
  count = local.has_events ? 1 : 0

  project = var.project_id
  name    = local.events_name
  labels  = local.labels
}

resource "google_logging_project_sink" "events" {
  count = local.has_events ? 1 : 0

  project                = var.project_id
  name                   = local.events_name
  destination            = "pubsub.googleapis.com/${google_pubsub_topic.events[0].id}"
  unique_writer_identity = true
  filter = templatefile("${path.module}/files/sink-filter.txt", {
    project     = var.project_id
    name_prefix = var.name_prefix
  })
}

resource "google_pubsub_topic_iam_member" "sink" {
  count = local.has_events ? 1 : 0

  project = var.project_id
  topic   = google_pubsub_topic.events[0].name
  role    = "roles/pubsub.publisher"
  member  = google_logging_project_sink.events[0].writer_identity
}

resource "google_pubsub_subscription" "events" {
  count = local.has_events ? 1 : 0

  project                    = var.project_id
  name                       = local.events_name
  topic                      = google_pubsub_topic.events[0].id
  labels                     = local.labels
  ack_deadline_seconds       = 10
  message_retention_duration = "600s" # an older hint is useless

  expiration_policy {
    ttl = "" # never
  }
}

resource "google_pubsub_subscription_iam_member" "loop" {
  count = local.has_events ? 1 : 0

  project      = var.project_id
  subscription = google_pubsub_subscription.events[0].name
  role         = google_project_iam_custom_role.this["events"].id
  member       = local.member
}

# --- the files of the runners -----------------------------------------------------------------------------------------

locals {
  # One directory without subdirectories, because the toolkit's startup-script makes none.
  directory = "/opt/hostfactory-settings"
  made      = yamldecode(module.settings.provisioner_yaml)

  # A pod spec is in the directory of provisioner.yaml, whatever the name of its pool.
  pools = {
    for name, pool in local.made.pools : name => merge(pool, pool.kind != "gke" ? {} : { pod_spec = "pod-spec-${name}.yaml" })
  }
  files = merge(
    { for name, pool in var.pods : "pod-spec-${name}.yaml" => coalesce(pool.pod_spec, module.settings.files["pod-specs/${name}.yaml"]) },
    { for path, text in module.settings.files : path => text if endswith(path, ".crt") },
  )
  settings = yamlencode({
    instance    = var.instance
    scripts     = "/opt/provisioner/hf_scripts/"
    requestors  = { for name, requestor in var.requestors : name => { for key, value in requestor : key => value if value != null } }
    config      = jsondecode(module.settings.provider_config_json)
    templates   = jsondecode(module.settings.provider_templates_json).templates
    pools       = local.pools
    provisioner = { for name, value in local.made : name => value if name != "pools" }
    files       = keys(local.files)
  })
  namespaces = distinct([for pool in values(local.made.pools) : pool.namespace if pool.kind == "gke"])
}
