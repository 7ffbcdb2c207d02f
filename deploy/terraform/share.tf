# A client that mounts the share can write as any user but root, because NFS trusts the client's user numbers. So instances
# and pods must not mount it. Root stays root only for Symphony's hosts, which run the recipe's chown, because a new share
# belongs to root. If no such host is named, root of every client stays root; else the chown would fail.
locals {
  share_clients = (
    try(var.share.clients, null) != null ? var.share.clients :
    local.own_network ? concat([var.network.nodes_range], var.symphony_ranges) : []
  )
  share_admins = [for range in local.share_clients : range if contains(var.symphony_ranges, range)]
  share_exports = {
    NO_ROOT_SQUASH = length(local.share_admins) > 0 ? local.share_admins : local.share_clients
    ROOT_SQUASH    = length(local.share_admins) > 0 ? [for range in local.share_clients : range if !contains(local.share_admins, range)] : []
  }
  # Filestore accepts a name, or projects/PROJECT/global/networks/NAME, which is a self link without its beginning.
  share_network = local.own_network ? google_compute_network.this[0].name : replace(var.network.network, "/^https:.*/projects//", "projects/")
}

resource "google_filestore_instance" "state" {
  count = var.share != null ? 1 : 0

  project  = var.project_id
  name     = "${var.name_prefix}-state"
  location = var.share.tier == "REGIONAL" ? var.region : var.zones[0]
  tier     = var.share.tier
  labels   = var.labels
  # Basic tiers have no such option and refuse it.
  deletion_protection_enabled = var.deletion_protection && !startswith(var.share.tier, "BASIC") ? true : null

  file_shares {
    name        = "state"
    capacity_gb = var.share.capacity

    dynamic "nfs_export_options" {
      for_each = { for mode, ranges in local.share_exports : mode => ranges if length(ranges) > 0 }

      content {
        ip_ranges   = nfs_export_options.value
        access_mode = "READ_WRITE"
        squash_mode = nfs_export_options.key
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
