locals {
  own_network = var.network.subnetwork == null
  network     = local.own_network ? google_compute_network.this[0].id : var.network.network
  subnetwork  = local.own_network ? google_compute_subnetwork.this[0].id : var.network.subnetwork
  machines_subnetwork = (
    !local.own_network ? coalesce(var.network.machines_subnetwork, var.network.subnetwork) :
    local.has_groups ? google_compute_subnetwork.machines[0].id : null
  )
}

resource "google_compute_network" "this" {
  count = local.own_network ? 1 : 0

  project                 = var.project_id
  name                    = var.name_prefix
  auto_create_subnetworks = false

  depends_on = [google_project_service.this]
}

resource "google_compute_subnetwork" "this" {
  count = local.own_network ? 1 : 0

  project                  = var.project_id
  name                     = var.name_prefix
  region                   = var.region
  network                  = google_compute_network.this[0].id
  ip_cidr_range            = var.network.nodes_range
  private_ip_google_access = true # nodes and machines have no public address

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = var.network.pods_range
  }

  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = var.network.services_range
  }
}

# The groups' subnet. Its separate range distinguishes instances from the nodes, which may mount the share.
resource "google_compute_subnetwork" "machines" {
  count = local.own_network && local.has_groups ? 1 : 0

  project                  = var.project_id
  name                     = "${var.name_prefix}-machines"
  region                   = var.region
  network                  = google_compute_network.this[0].id
  ip_cidr_range            = var.network.machines_range
  private_ip_google_access = true
}

# Symphony's ports depend on its configuration, so machines and management hosts reach each other on all ports.
resource "google_compute_firewall" "symphony" {
  count = local.own_network ? 1 : 0

  project       = var.project_id
  name          = "${var.name_prefix}-symphony"
  network       = google_compute_network.this[0].id
  direction     = "INGRESS"
  source_ranges = concat([var.network.nodes_range, var.network.machines_range, var.network.pods_range], var.symphony_ranges)

  allow {
    protocol = "tcp"
  }

  allow {
    protocol = "udp"
  }

  allow {
    protocol = "icmp"
  }
}
