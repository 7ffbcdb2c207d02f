# Who may mount it may write in it as whoever it likes: NFS believes a client's numbers. So neither groups nor pods may.
locals {
  share_clients = (
    try(var.share.clients, null) != null ? var.share.clients :
    local.own_network ? concat([var.network.nodes_range], var.symphony_ranges) : []
  )
  # Filestore takes a name, or projects/PROJECT/global/networks/NAME: a self link without its beginning.
  share_network = local.own_network ? google_compute_network.this[0].name : replace(var.network.network, "/^https:.*/projects//", "projects/")
}

resource "google_filestore_instance" "state" {
  count = var.share != null ? 1 : 0

  project  = var.project_id
  name     = "${var.name_prefix}-state"
  location = var.share.tier == "REGIONAL" ? var.region : var.zones[0]
  tier     = var.share.tier
  labels   = var.labels
  # Basic tiers know no such thing, and refuse to be made with it.
  deletion_protection_enabled = var.deletion_protection && !startswith(var.share.tier, "BASIC") ? true : null

  file_shares {
    name        = "state"
    capacity_gb = var.share.capacity

    dynamic "nfs_export_options" {
      for_each = length(local.share_clients) > 0 ? [1] : []

      content {
        ip_ranges   = local.share_clients
        access_mode = "READ_WRITE"
        squash_mode = "NO_ROOT_SQUASH" # for the one chown with which the recipe begins
      }
    }
  }

  networks {
    network      = local.share_network
    modes        = ["MODE_IPV4"]
    connect_mode = var.share.private_service_access ? "PRIVATE_SERVICE_ACCESS" : "DIRECT_PEERING"
  }

  depends_on = [google_project_service.this]
}
