# Copyright 2026 The HostFactory provisioner authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

# terraform test: the module with a provider that makes nothing. No account, no network.

mock_provider "google" {}

variables {
  project_id            = "grid-project"
  region                = "us-central1"
  zone                  = "us-central1-a"
  labels                = { app = "symphony" }
  name                  = "hf-c2"
  instance_image        = { project = "grid-project", family = "symphony" }
  subnetwork_self_link  = "projects/grid-project/regions/us-central1/subnetworks/primary"
  service_account_email = "workers@grid-project.iam.gserviceaccount.com"
  startup_script        = "#!/bin/bash"
  metadata              = { hf-ego-master = "symphony-gcp-master-0", shutdown-script = "#!/bin/bash" }
}

run "a_group_does_nothing_by_itself" {
  command = apply

  assert {
    condition     = google_compute_instance_group_manager.this.instance_lifecycle_policy[0].default_action_on_failure == "DO_NOTHING" && google_compute_instance_group_manager.this.update_policy[0].type == "OPPORTUNISTIC"
    error_message = "The group repairs nothing and updates nothing."
  }

  assert {
    condition     = google_compute_instance_template.this.metadata.startup-script == "#!/bin/bash" && google_compute_instance_template.this.metadata.hf-ego-master == "symphony-gcp-master-0" && google_compute_instance_template.this.metadata.shutdown-script == "#!/bin/bash"
    error_message = "An instance joins, and leaves."
  }

  assert {
    condition     = google_compute_instance_template.this.disk[0].source_image == "projects/grid-project/global/images/family/symphony" && google_compute_instance_template.this.labels.ghpc_module == "hostfactory-group"
    error_message = "An instance boots the image and has the labels."
  }

  assert {
    condition     = length(google_compute_instance_template.this.network_interface[0].access_config) == 0
    error_message = "An instance has no public address."
  }
}

run "a_spot_machine_stays_to_be_seen" {
  command = apply
  variables {
    spot           = true
    instance_image = { project = "grid-project", name = "symphony-7-3-2" }
  }

  assert {
    condition     = google_compute_instance_template.this.scheduling[0].instance_termination_action == "STOP" && google_compute_instance_template.this.disk[0].source_image == "projects/grid-project/global/images/symphony-7-3-2"
    error_message = "A preempted instance is stopped, and the loop deletes it."
  }
}

run "an_instance_that_would_join_nothing_is_refused" {
  command = plan
  variables {
    metadata       = {}
    name           = "C2"
    instance_image = { project = "grid-project" }
  }
  expect_failures = [var.metadata, var.name, var.instance_image]
}
