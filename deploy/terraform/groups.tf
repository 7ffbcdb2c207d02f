# Templates and groups of instances. The loop makes and deletes the instances, by name; a group does nothing by itself:
# it has no autoscaler, updates nothing, and repairs nothing. Its target size follows the loop and is never set here.

locals {
  zonal_groups    = { for name, group in var.groups : name => group if group.zone != null }
  regional_groups = { for name, group in var.groups : name => group if group.region != null }
}

resource "google_compute_instance_template" "this" {
  for_each = var.groups

  project      = var.project_id
  name_prefix  = "${module.settings.group_names[each.key]}-"
  machine_type = each.value.machine_type
  labels       = merge(var.labels, { hostfactory-pool = each.key })

  disk {
    source_image = each.value.image
    boot         = true
    auto_delete  = true
    disk_size_gb = each.value.disk_gb
    disk_type    = each.value.disk_type
  }

  network_interface {
    subnetwork = local.machines_subnetwork
  }

  scheduling {
    provisioning_model  = each.value.spot ? "SPOT" : "STANDARD"
    preemptible         = each.value.spot
    automatic_restart   = false # the loop replaces a lost machine by a new one
    on_host_maintenance = each.value.spot ? "TERMINATE" : "MIGRATE"
    # A preempted instance is stopped, so that the loop observes it; the loop deletes it.
    instance_termination_action = each.value.spot ? "STOP" : null
  }

  service_account {
    email  = google_service_account.machines[0].email
    scopes = ["cloud-platform"]
  }

  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  metadata = merge(
    { block-project-ssh-keys = "true", enable-oslogin = "TRUE" },
    each.value.startup_script == "" ? {} : { startup-script = each.value.startup_script },
    each.value.metadata,
    { for name, path in each.value.metadata_from_file : name => file(path) },
  )

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_compute_instance_group_manager" "this" {
  for_each = local.zonal_groups

  project                        = var.project_id
  name                           = module.settings.group_names[each.key]
  zone                           = each.value.zone
  base_instance_name             = module.settings.group_names[each.key]
  list_managed_instances_results = "PAGELESS"

  version {
    instance_template = google_compute_instance_template.this[each.key].self_link_unique
  }

  update_policy {
    type           = "OPPORTUNISTIC"
    minimal_action = "REPLACE"
  }

  instance_lifecycle_policy {
    default_action_on_failure = "DO_NOTHING"
  }

  depends_on = [google_project_iam_member.agent, google_service_account_iam_member.agent]

  lifecycle {
    ignore_changes = [target_size]
  }
}

resource "google_compute_region_instance_group_manager" "this" {
  for_each = local.regional_groups

  project                          = var.project_id
  name                             = module.settings.group_names[each.key]
  region                           = each.value.region
  base_instance_name               = module.settings.group_names[each.key]
  list_managed_instances_results   = "PAGELESS"
  distribution_policy_zones        = length(each.value.zones) > 0 ? each.value.zones : null
  distribution_policy_target_shape = "ANY" # any zone with capacity

  version {
    instance_template = google_compute_instance_template.this[each.key].self_link_unique
  }

  update_policy {
    type                         = "OPPORTUNISTIC"
    minimal_action               = "REPLACE"
    instance_redistribution_type = "NONE"
  }

  instance_lifecycle_policy {
    default_action_on_failure = "DO_NOTHING"
  }

  depends_on = [google_project_iam_member.agent, google_service_account_iam_member.agent]

  lifecycle {
    ignore_changes = [target_size]
  }
}
