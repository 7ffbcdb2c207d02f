locals {
  autopilot  = try(var.cluster.autopilot, false)
  node_pools = local.has_cluster && !local.autopilot ? var.cluster.node_pools : {}

  # The API server's address for a loop on HostFactory's host. Every system trusts the authority of the DNS endpoint.
  reached = local.has_cluster && var.kubeconfig == null ? var.endpoint : null
  has_dns = local.reached == "dns"
  address = (
    local.reached == null ? null :
    local.has_dns ? google_container_cluster.this[0].control_plane_endpoints_config[0].dns_endpoint_config[0].endpoint :
    local.reached == "private" ? google_container_cluster.this[0].private_cluster_config[0].private_endpoint :
    google_container_cluster.this[0].private_cluster_config[0].public_endpoint
  )
  ca_certificate = (
    local.reached == null || local.has_dns ? null :
    base64decode(google_container_cluster.this[0].master_auth[0].cluster_ca_certificate)
  )
}

resource "google_container_cluster" "this" {
  count = local.has_cluster ? 1 : 0

  project             = var.project_id
  name                = var.name_prefix
  location            = var.region
  node_locations      = length(var.zones) > 0 && !local.autopilot ? var.zones : null
  network             = local.network
  subnetwork          = local.subnetwork
  networking_mode     = "VPC_NATIVE"
  datapath_provider   = local.autopilot ? null : "ADVANCED_DATAPATH" # so that network policies are enforced; Autopilot always has it
  resource_labels     = var.labels
  deletion_protection = var.deletion_protection

  enable_autopilot         = local.autopilot ? true : null
  remove_default_node_pool = local.autopilot ? null : true
  initial_node_count       = local.autopilot ? null : 1
  # 64 addresses per node instead of 256, so that the pods' range is enough for four times as many nodes.
  default_max_pods_per_node = local.autopilot ? null : 32

  ip_allocation_policy {
    cluster_secondary_range_name  = "pods"
    services_secondary_range_name = "services"
  }

  private_cluster_config {
    enable_private_nodes    = true
    enable_private_endpoint = false
  }

  dynamic "control_plane_endpoints_config" {
    for_each = local.has_dns ? [1] : []

    content {
      dns_endpoint_config {
        allow_external_traffic = true
      }
    }
  }

  master_authorized_networks_config {
    dynamic "cidr_blocks" {
      for_each = concat(var.symphony_ranges, var.cluster.authorized_ranges)

      content {
        cidr_block = cidr_blocks.value
      }
    }
  }

  master_auth {
    client_certificate_config {
      issue_client_certificate = false
    }
  }

  release_channel {
    channel = var.cluster.release_channel
  }

  # An upgrade ends the pods of a node, and thus machines.
  dynamic "maintenance_policy" {
    for_each = var.cluster.maintenance == null ? [] : [var.cluster.maintenance]

    content {
      recurring_window {
        start_time = maintenance_policy.value.start
        end_time   = maintenance_policy.value.end
        recurrence = maintenance_policy.value.recurrence
      }
    }
  }

  dynamic "workload_identity_config" {
    for_each = local.autopilot ? [] : [1]

    content {
      workload_pool = "${var.project_id}.svc.id.goog"
    }
  }

  # The driver that mounts secrets, for the component secret-csi.
  dynamic "secret_manager_config" {
    for_each = local.has_secrets ? [1] : []

    content {
      enabled = true
    }
  }

  # The default pool of a new standard cluster has this account, too, until it is removed after some minutes.
  dynamic "node_config" {
    for_each = local.autopilot ? [] : [1]

    content {
      service_account = google_service_account.nodes[0].email

      workload_metadata_config {
        mode = "GKE_METADATA"
      }

      shielded_instance_config {
        enable_secure_boot          = true
        enable_integrity_monitoring = true
      }
    }
  }

  dynamic "cluster_autoscaling" {
    for_each = local.autopilot ? [1] : []

    content {
      auto_provisioning_defaults {
        service_account = google_service_account.nodes[0].email
      }
    }
  }

  depends_on = [
    google_project_iam_member.agent,
    google_project_iam_member.nodes,
    google_service_account_iam_member.agent,
  ]

  lifecycle {
    ignore_changes = [node_config, initial_node_count]
  }
}

# For the loop and the cluster's own pods: never Spot.
resource "google_container_node_pool" "system" {
  count = local.has_cluster && !local.autopilot ? 1 : 0

  project  = var.project_id
  name     = "system"
  cluster  = google_container_cluster.this[0].name
  location = var.region

  initial_node_count = 1 # in each zone; otherwise the pool begins with no node, whatever the minimum is
  autoscaling {
    total_min_node_count = 1
    total_max_node_count = max(3, length(var.zones))
  }

  node_config {
    machine_type    = var.cluster.system_machine
    service_account = google_service_account.nodes[0].email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    resource_labels = var.labels

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  lifecycle {
    ignore_changes = [initial_node_count]
  }
}

# Only for pods that are machines, so that a pool without machines shrinks to zero nodes.
resource "google_container_node_pool" "workers" {
  for_each = local.node_pools

  project  = var.project_id
  name     = each.key
  cluster  = google_container_cluster.this[0].name
  location = var.region

  autoscaling {
    total_min_node_count = 0
    total_max_node_count = each.value.max_nodes
    location_policy      = "ANY" # any zone with capacity, which matters most for Spot
  }

  node_config {
    machine_type    = each.value.machine_type
    spot            = each.value.spot
    disk_size_gb    = each.value.disk_gb
    service_account = google_service_account.nodes[0].email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    resource_labels = var.labels
    labels          = { "hostfactory/machines" = "true" }

    taint {
      key    = "hostfactory/machines"
      value  = "true"
      effect = "NO_SCHEDULE"
    }

    dynamic "taint" {
      for_each = each.value.spot ? [1] : []

      content {
        key    = "cloud.google.com/gke-spot"
        value  = "true"
        effect = "NO_SCHEDULE"
      }
    }

    # Image streaming: pods start before their image is complete.
    gcfs_config {
      enabled = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  lifecycle {
    ignore_changes = [initial_node_count]
  }
}
