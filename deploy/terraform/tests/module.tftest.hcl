# terraform test: the whole module with a provider that makes nothing. No account, no network.

mock_provider "google" {
  mock_resource "google_container_cluster" {
    defaults = {
      master_auth            = { cluster_ca_certificate = "b2YgdGhlIGNsdXN0ZXI=" }
      private_cluster_config = { public_endpoint = "203.0.113.7", private_endpoint = "10.60.0.2" }
    }
  }
}

variables {
  project_id = "grid-project"
  region     = "us-central1"
  pods = {
    pods = { image = "registry.example.com/compute:1", env = { HF_EGO_MASTER = "master1" }, cpus = 4, memory_mb = 8192, max_machines = 100 }
  }
  groups = {
    zonal    = { zone = "us-central1-a", machine_type = "n2-standard-8", image = "projects/p/global/images/i", max_machines = 500 }
    regional = { region = "us-central1", zones = ["us-central1-a", "us-central1-b"], machine_type = "n2-standard-8", image = "projects/p/global/images/i", max_machines = 2000, spot = true }
  }
  templates = {
    Small = { pools = ["pods", "zonal", "regional"], ncpus = 4, nram = 8192, max_number = 1000 }
  }
}

run "makes_all_of_a_grid" {
  command = apply

  variables {
    zones           = ["us-central1-a", "us-central1-b"]
    symphony_ranges = ["10.0.0.0/16"]
    share           = {}
  }

  assert {
    condition     = length(google_container_cluster.this[0].maintenance_policy) == 0
    error_message = "There is no window unless one is given."
  }

  assert {
    condition     = google_service_account.loop.account_id == "hostfactory-provisioner"
    error_message = "The loop's account has the name that the pages have."
  }

  assert {
    condition     = google_container_cluster.this[0].datapath_provider == "ADVANCED_DATAPATH"
    error_message = "Dataplane V2 enforces the network policies of the manifests."
  }

  assert {
    condition     = contains(keys(google_project_service.this), "artifactregistry.googleapis.com")
    error_message = "Nodes pull their images from Artifact Registry."
  }

  assert {
    condition     = google_artifact_registry_repository.images[0].format == "DOCKER" && google_artifact_registry_repository.images[0].repository_id == "hf" && google_artifact_registry_repository.images[0].location == "us-central1"
    error_message = "There is a registry for the image of the pods."
  }

  assert {
    condition     = output.overlay_values.nfsPath == "/state" && output.overlay_values.nfsServer == output.share.address && output.overlay_values.googleServiceAccount == output.account
    error_message = "The overlay's values are those of the share and the account that are made."
  }

  assert {
    condition     = output.overlay_values.apiServer == "${google_container_cluster.this[0].private_cluster_config[0].private_endpoint}/32" && output.overlay_values.image == "us-central1-docker.pkg.dev/grid-project/hf/provisioner:VERSION" && output.overlay_values.nodesServiceAccount == google_service_account.nodes[0].email
    error_message = "The loop's image lies in the registry that is made, and compute classes give their nodes the nodes' account."
  }

  assert {
    condition     = !google_container_cluster.this[0].deletion_protection && google_filestore_instance.state[0].deletion_protection_enabled != true
    error_message = "By default, everything can be destroyed."
  }

  assert {
    condition     = google_compute_instance_group_manager.this["zonal"].name == "hf-zonal" && google_compute_region_instance_group_manager.this["regional"].name == "hf-regional"
    error_message = "Groups have the names that provisioner.yaml gives them."
  }

  assert {
    condition     = google_compute_instance_template.this["regional"].scheduling[0].provisioning_model == "SPOT" && google_compute_instance_template.this["regional"].scheduling[0].preemptible
    error_message = "A Spot group makes Spot instances."
  }

  assert {
    condition     = google_compute_instance_template.this["zonal"].scheduling[0].provisioning_model == "STANDARD" && !google_compute_instance_template.this["zonal"].scheduling[0].preemptible
    error_message = "Other groups make instances on demand."
  }

  assert {
    condition     = google_container_node_pool.system[0].initial_node_count == 1 && google_container_node_pool.system[0].autoscaling[0].total_max_node_count == 3
    error_message = "The pool of the cluster's own pods begins with a node in each zone."
  }

  assert {
    condition     = google_container_node_pool.workers["workers-spot"].node_config[0].spot && length(google_container_node_pool.workers["workers-spot"].node_config[0].taint) == 2
    error_message = "Spot nodes are tainted twice: for machines alone, and as Spot."
  }

  assert {
    condition     = length(google_container_node_pool.workers["workers"].node_config[0].taint) == 1
    error_message = "Nodes on demand are tainted for machines alone."
  }

  assert {
    condition     = strcontains(google_logging_project_sink.events[0].filter, "/instances/hf-") && strcontains(google_logging_project_sink.events[0].filter, "projects/grid-project/logs")
    error_message = "The sink's filter names the project and the machines."
  }

  assert {
    condition     = contains(google_project_iam_custom_role.machines[0].permissions, "compute.instanceGroupManagers.update")
    error_message = "The loop's role is read from its file."
  }

  assert {
    condition     = google_service_account_iam_member.workload_identity[0].member == "serviceAccount:grid-project.svc.id.goog[hostfactory/provisioner]"
    error_message = "The loop's pod acts as the loop's account."
  }

  assert {
    condition     = yamldecode(output.provisioner_yaml).events.subscription == google_pubsub_subscription.events[0].name
    error_message = "provisioner.yaml names the subscription that is made."
  }

  assert {
    condition     = yamldecode(output.provisioner_yaml).pools.pods.endpoint == "https://203.0.113.7" && output.files[yamldecode(output.provisioner_yaml).pools.pods.ca_file] == "of the cluster"
    error_message = "The loop reaches the cluster that is made by its public address, whose authority is among the files."
  }

  assert {
    condition     = length(google_project_iam_custom_role.cluster) == 0 && length(google_container_cluster.this[0].control_plane_endpoints_config) == 0
    error_message = "No port is opened, and no right given, for an endpoint that is not used."
  }

  assert {
    condition     = { for export in google_filestore_instance.state[0].file_shares[0].nfs_export_options : export.squash_mode => export.ip_ranges } == { NO_ROOT_SQUASH = tolist(["10.0.0.0/16"]), ROOT_SQUASH = tolist(["10.60.0.0/20"]) }
    error_message = "The share answers nodes and Symphony's hosts, and root is root for the latter alone."
  }

  assert {
    condition     = google_compute_instance_template.this["zonal"].network_interface[0].subnetwork == google_compute_subnetwork.machines[0].id && google_compute_subnetwork.machines[0].ip_cidr_range == "10.62.0.0/20" && contains(google_compute_firewall.symphony[0].source_ranges, "10.62.0.0/20")
    error_message = "Groups have a subnet of their own, which the share does not answer, and Symphony does."
  }

  assert {
    condition     = google_filestore_instance.state[0].location == "us-central1-a" && output.share.export == "/state"
    error_message = "The share lies in the first zone."
  }
}

run "the_private_address_has_the_same_authority" {
  command = apply

  variables {
    endpoint = "private"
  }

  assert {
    condition     = yamldecode(output.provisioner_yaml).pools.pods.endpoint == "https://10.60.0.2" && output.files["cluster-ca.crt"] == "of the cluster"
    error_message = "The endpoint is the address within the network."
  }
}

run "a_loop_in_a_pod_has_the_account_of_its_pod" {
  command = apply

  variables {
    endpoint = null
  }

  assert {
    condition     = !can(yamldecode(output.provisioner_yaml).pools.pods.endpoint) && !contains(keys(output.files), "cluster-ca.crt")
    error_message = "A loop in the cluster needs no endpoint."
  }
}

run "an_endpoint_that_no_cluster_has_is_refused" {
  command = plan

  variables {
    endpoint = "internal"
  }

  expect_failures = [var.endpoint]
}

run "no_secret_unless_one_is_named" {
  command = apply

  assert {
    condition     = length(google_container_cluster.this[0].secret_manager_config) == 0 && !contains(keys(google_project_service.this), "secretmanager.googleapis.com") && !contains(keys(output.overlay_values), "nfsServer")
    error_message = "An API that is not used is not enabled."
  }
}

run "secrets_are_mounted_by_the_cluster_and_read_by_the_loop_alone" {
  command = apply

  variables {
    secrets             = ["hostfactory-metrics-token", "hostfactory-proxy"]
    deletion_protection = true
    zones               = ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"]
    share               = {}
  }

  assert {
    condition     = google_filestore_instance.state[0].deletion_protection_enabled != true
    error_message = "A share of a basic tier has no deletion protection, which would be refused."
  }

  assert {
    condition     = google_container_node_pool.system[0].autoscaling[0].total_max_node_count == 4
    error_message = "There may be a node in each zone."
  }

  assert {
    condition     = google_container_cluster.this[0].secret_manager_config[0].enabled && contains(keys(google_project_service.this), "secretmanager.googleapis.com")
    error_message = "The cluster has the add-on that mounts secrets."
  }

  assert {
    condition     = alltrue([for name in var.secrets : google_secret_manager_secret_iam_member.loop[name].role == "roles/secretmanager.secretAccessor" && google_secret_manager_secret_iam_member.loop[name].secret_id == name && google_secret_manager_secret_iam_member.loop[name].member == google_service_account.loop.member])
    error_message = "The loop's account may read each secret."
  }

  assert {
    condition     = google_container_cluster.this[0].deletion_protection && alltrue([for name in var.secrets : google_secret_manager_secret.this[name].deletion_protection])
    error_message = "With protection, resources with content refuse to be destroyed."
  }
}

run "a_share_that_can_be_protected_is" {
  command = plan

  variables {
    deletion_protection = true
    share               = { tier = "REGIONAL" }
  }

  assert {
    condition     = google_filestore_instance.state[0].deletion_protection_enabled
    error_message = "The share refuses to be destroyed."
  }
}

run "a_share_that_is_too_small_for_its_tier_is_refused" {
  command = plan

  variables {
    zones = ["us-central1-a"]
    share = { tier = "BASIC_SSD" }
  }

  expect_failures = [var.share]
}

run "a_window_that_ends_before_it_begins_is_refused" {
  command = plan

  variables {
    cluster = { maintenance = { start = "2026-01-04T04:00:00Z", end = "2026-01-03T22:00:00Z", recurrence = "FREQ=DAILY" } }
  }

  expect_failures = [var.cluster]
}

run "autopilot_makes_its_own_nodes" {
  command = apply

  variables {
    cluster = {
      autopilot   = true
      maintenance = { start = "2026-01-03T22:00:00Z", end = "2026-01-04T04:00:00Z", recurrence = "FREQ=WEEKLY;BYDAY=SA,SU" }
    }
    secrets = ["hostfactory-proxy"]
  }

  assert {
    condition     = google_container_cluster.this[0].secret_manager_config[0].enabled
    error_message = "Autopilot has the add-on if there are secrets, too."
  }

  assert {
    condition     = google_container_cluster.this[0].maintenance_policy[0].recurring_window[0].recurrence == "FREQ=WEEKLY;BYDAY=SA,SU" && google_container_cluster.this[0].maintenance_policy[0].recurring_window[0].end_time == "2026-01-04T04:00:00Z"
    error_message = "Google upgrades in the window that is given."
  }

  assert {
    condition     = length(google_container_node_pool.workers) == 0 && length(google_container_node_pool.system) == 0
    error_message = "Autopilot has no node pools of ours."
  }

  assert {
    condition     = google_container_cluster.this[0].cluster_autoscaling[0].auto_provisioning_defaults[0].service_account == google_service_account.nodes[0].email
    error_message = "Its nodes have the nodes' account."
  }
}

run "groups_alone_need_no_cluster" {
  command = apply

  variables {
    cluster   = null
    pods      = {}
    templates = { Small = { pools = ["zonal"], ncpus = 4, nram = 8192, max_number = 1000 } }
  }

  assert {
    condition     = length(google_container_cluster.this) == 0 && length(google_artifact_registry_repository.images) == 0 && !contains(keys(google_project_service.this), "container.googleapis.com") && output.cluster == null
    error_message = "Without a cluster no part of a cluster is made."
  }

  assert {
    condition     = keys(google_service_account_iam_member.agent) == ["machines"] && google_project_iam_member.agent[0].role == "roles/compute.instanceAdmin.v1"
    error_message = "Google's agent makes instances with the account of the groups."
  }
}

run "pods_alone_need_no_group" {
  command = apply

  variables {
    groups    = {}
    templates = { Small = { pools = ["pods"], ncpus = 4, nram = 8192, max_number = 1000 } }
  }

  assert {
    condition     = length(google_pubsub_subscription.events) == 0 && length(google_project_iam_custom_role.machines) == 0 && length(google_service_account.machines) == 0
    error_message = "Without groups the loop has no right in the project, and there are no events."
  }

  assert {
    condition     = keys(google_service_account_iam_member.agent) == ["nodes"] && google_service_account_iam_member.agent["nodes"].service_account_id == google_service_account.nodes[0].name && google_project_iam_member.agent[0].role == "roles/compute.instanceAdmin.v1"
    error_message = "Google's agent makes the nodes with their account, also where a policy took its default role away."
  }
}

run "a_group_s_metadata_reaches_its_instances" {
  command = apply

  variables {
    groups    = { zonal = { zone = "us-central1-a", machine_type = "n2-standard-8", image = "i", max_machines = 10, metadata = { hf-ego-master = "master1" } } }
    templates = { Small = { pools = ["zonal"], ncpus = 4, nram = 8192, max_number = 10 } }
  }

  assert {
    condition     = google_compute_instance_template.this["zonal"].metadata["hf-ego-master"] == "master1" && google_compute_instance_template.this["zonal"].metadata["enable-oslogin"] == "TRUE"
    error_message = "Metadata has the attributes that startup.sh and shutdown.sh read, and those of every instance."
  }
}

run "a_group_s_files_reach_its_instances" {
  command = apply

  variables {
    groups    = { zonal = { zone = "us-central1-a", machine_type = "n2-standard-8", image = "i", max_machines = 10, metadata_from_file = { startup-script = "sink-filter.txt" } } }
    templates = { Small = { pools = ["zonal"], ncpus = 4, nram = 8192, max_number = 10 } }
  }

  assert {
    condition     = google_compute_instance_template.this["zonal"].metadata["startup-script"] == file("sink-filter.txt")
    error_message = "metadata_from_file gives the content of the files."
  }
}

run "a_file_that_is_not_there_is_refused" {
  command = plan

  variables {
    groups    = { zonal = { zone = "us-central1-a", machine_type = "n2-standard-8", image = "i", max_machines = 10, metadata_from_file = { startup-script = "no-such.sh" } } }
    templates = { Small = { pools = ["zonal"], ncpus = 4, nram = 8192, max_number = 10 } }
  }

  expect_failures = [var.groups]
}

run "an_existing_network_is_used" {
  command = apply

  variables {
    network = { network = "https://www.googleapis.com/compute/v1/projects/host/global/networks/n", subnetwork = "projects/host/regions/us-central1/subnetworks/s" }
    zones   = ["us-central1-a"]
    share   = { clients = ["10.9.0.0/24"], private_service_access = true }
  }

  assert {
    condition     = google_filestore_instance.state[0].networks[0].connect_mode == "PRIVATE_SERVICE_ACCESS" && google_filestore_instance.state[0].networks[0].network == "projects/host/global/networks/n" && length(google_compute_firewall.symphony) == 0
    error_message = "The share is reached as a Shared VPC needs it, and no resource is made in a network that is given."
  }

  assert {
    condition     = length(google_compute_subnetwork.machines) == 0 && google_compute_instance_template.this["zonal"].network_interface[0].subnetwork == "projects/host/regions/us-central1/subnetworks/s" && google_compute_instance_template.this["regional"].network_interface[0].subnetwork == "projects/host/regions/us-central1/subnetworks/s"
    error_message = "Groups are in the subnetwork that is given."
  }

  assert {
    condition     = { for export in google_filestore_instance.state[0].file_shares[0].nfs_export_options : export.squash_mode => export.ip_ranges } == { NO_ROOT_SQUASH = tolist(["10.9.0.0/24"]) }
    error_message = "The share answers the listed ranges; without a host of Symphony's among them, one of them gives it to HostFactory's group."
  }

  assert {
    condition     = length(google_compute_network.this) == 0 && google_container_cluster.this[0].subnetwork == "projects/host/regions/us-central1/subnetworks/s"
    error_message = "No network is made if a network is given."
  }
}

run "pods_without_a_cluster_are_refused" {
  command = plan

  variables {
    cluster = null
  }

  expect_failures = [var.pods]
}

run "secrets_without_a_cluster_are_refused" {
  command = plan

  variables {
    cluster   = null
    pods      = {}
    secrets   = ["hostfactory-proxy"]
    templates = { Small = { pools = ["zonal"], ncpus = 4, nram = 8192, max_number = 1000 } }
  }

  expect_failures = [var.secrets]
}

run "a_share_without_a_zone_is_refused" {
  command = plan

  variables {
    share = {}
  }

  expect_failures = [var.share]
}

run "a_zone_of_another_region_is_refused" {
  command = plan

  variables {
    zones = ["europe-west1-b"]
  }

  expect_failures = [var.zones]
}

run "a_group_of_another_region_is_refused" {
  command = plan

  variables {
    groups    = { zonal = { zone = "europe-west1-b", machine_type = "n2-standard-8", image = "i", max_machines = 10 } }
    templates = { Small = { pools = ["zonal"], ncpus = 4, nram = 8192, max_number = 10 } }
  }

  expect_failures = [var.groups]
}

run "a_second_deployment_has_a_loop_s_account_of_its_own" {
  command = apply

  variables {
    name_prefix = "b"
  }

  assert {
    condition     = google_service_account.loop.account_id == "b-loop" && google_service_account.nodes[0].account_id == "b-nodes"
    error_message = "No resource with the prefix in its name belongs to another deployment."
  }
}

run "half_a_network_is_refused" {
  command = plan

  variables {
    network = { subnetwork = "projects/host/regions/us-central1/subnetworks/s" }
  }

  expect_failures = [var.network]
}
