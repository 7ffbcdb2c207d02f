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
  labels = merge(var.labels, { ghpc_module = "hostfactory-group", ghpc_role = "compute" })
}

locals {
  image = (
    can(coalesce(var.instance_image.name))
    ? "projects/${var.instance_image.project}/global/images/${var.instance_image.name}"
    : "projects/${var.instance_image.project}/global/images/family/${var.instance_image.family}"
  )
}

resource "google_compute_instance_template" "this" {
  project      = var.project_id
  region       = var.region
  name_prefix  = "${var.name}-"
  machine_type = var.machine_type
  labels       = local.labels

  disk {
    source_image = local.image
    boot         = true
    auto_delete  = true
    disk_size_gb = var.disk_size_gb
    disk_type    = var.disk_type
  }

  network_interface {
    subnetwork = var.subnetwork_self_link
  }

  scheduling {
    provisioning_model          = var.spot ? "SPOT" : "STANDARD"
    preemptible                 = var.spot
    automatic_restart           = false # the loop replaces a lost machine by a new one
    on_host_maintenance         = var.spot ? "TERMINATE" : "MIGRATE"
    instance_termination_action = var.spot ? "STOP" : null # so that the loop observes the preempted instance; the loop deletes it
  }

  service_account {
    email  = var.service_account_email
    scopes = var.service_account_scopes
  }

  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  metadata = merge(
    { block-project-ssh-keys = "true", enable-oslogin = "TRUE" },
    var.metadata,
    { startup-script = var.startup_script },
  )

  lifecycle {
    create_before_destroy = true
  }
}

# The loop makes and deletes the instances. The group does nothing by itself: it has no autoscaler, repairs nothing, updates
# nothing, and no deploy resizes it.
resource "google_compute_instance_group_manager" "this" {
  project                        = var.project_id
  name                           = var.name
  zone                           = var.zone
  base_instance_name             = var.name
  list_managed_instances_results = "PAGELESS"

  version {
    instance_template = google_compute_instance_template.this.self_link_unique
  }

  update_policy {
    type           = "OPPORTUNISTIC"
    minimal_action = "REPLACE"
  }

  instance_lifecycle_policy {
    default_action_on_failure = "DO_NOTHING"
  }

  lifecycle {
    ignore_changes = [target_size]
  }
}
