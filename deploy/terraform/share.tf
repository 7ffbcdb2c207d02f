resource "google_filestore_instance" "state" {
  count = var.share != null ? 1 : 0

  project                     = var.project_id
  name                        = "${var.name_prefix}-state"
  location                    = var.share.tier == "REGIONAL" ? var.region : var.zones[0]
  tier                        = var.share.tier
  labels                      = var.labels
  deletion_protection_enabled = var.deletion_protection ? true : null # basic tiers know no such thing

  file_shares {
    name        = "state"
    capacity_gb = var.share.capacity
  }

  networks {
    network = local.own_network ? google_compute_network.this[0].name : var.network.network
    modes   = ["MODE_IPV4"]
  }

  depends_on = [google_project_service.this]
}
