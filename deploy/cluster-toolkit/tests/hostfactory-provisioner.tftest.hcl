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
  deployment_name       = "symphony-gcp"
  region                = "us-central1"
  zone                  = "us-central1-a"
  labels                = { app = "symphony" }
  service_account_email = "master@grid-project.iam.gserviceaccount.com"
  bundle                = { uri = "gs://bucket/bundle.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  ego_master            = { name = "symphony-gcp-master-0", address = "10.0.0.10", attributes = "[resourcemap gcp*cloudprovider]" }
  groups                = { c2 = { max_machines = 10 } }
  templates             = { sym-mig-c2-4 = { pools = ["c2"], ncpus = 4, nram = 15360, max_number = 10 } }
}

run "an_instance_has_groups_alone" {
  command = apply

  variables {
    instance = "gcpgceinst"
    events   = true
  }

  assert {
    condition     = toset(keys(google_project_iam_custom_role.this)) == toset(["machines", "events"]) && keys(google_project_iam_member.this) == ["machines"]
    error_message = "The account gets the role for groups in the project, and the role for events at the subscription alone."
  }

  assert {
    condition     = google_pubsub_subscription_iam_member.loop[0].role == google_project_iam_custom_role.this["events"].id && google_pubsub_subscription_iam_member.loop[0].member == "serviceAccount:master@grid-project.iam.gserviceaccount.com"
    error_message = "The account reads one subscription."
  }

  assert {
    condition     = can(regex("system_event", google_logging_project_sink.events[0].filter))
    error_message = "Preemptions are in the log of system events."
  }

  assert {
    condition     = length(output.apply_manifests) == 0
    error_message = "Without pods there is no namespace."
  }

  assert {
    condition     = yamldecode(output.master_runners[0].content).pools.c2.group == "hf-c2" && yamldecode(output.master_runners[0].content).pools.c2.zone == "us-central1-a" && output.group_names == { c2 = "hf-c2" }
    error_message = "A group is in the zone of the deployment, unless it names another."
  }

  assert {
    condition     = yamldecode(output.master_runners[0].content).requestors == { symAinst = { mode = "POLL", enabled = true }, admin = { mode = "REST_MANUAL" } }
    error_message = "The requestor that Symphony ships disabled is enabled."
  }

  assert {
    condition     = yamldecode(output.master_runners[0].content).provisioner.events.subscription == "hf-events"
    error_message = "The loop reads the subscription."
  }

  assert {
    condition     = output.machine_metadata.hf-ego-master == "symphony-gcp-master-0" && output.machine_metadata.hf-ego-master-address == "10.0.0.10" && output.machine_metadata.hf-ego-attributes == "[resourcemap gcp*cloudprovider]"
    error_message = "Instances read the master's name, its address and their attributes."
  }

  assert {
    condition     = output.machine_runners[1].args == output.machine_runners[0].destination
    error_message = "The start-up script takes its library from the data runner's file."
  }

  assert {
    condition     = endswith(output.master_runners[1].args, " gcpgceinst egoadmin run")
    error_message = "The loop is started."
  }
}

run "pods_have_a_role_in_their_namespaces_alone" {
  command = apply

  variables {
    instance               = "gcpgkeinst"
    cluster_endpoint       = "203.0.113.7"
    cluster_ca_certificate = "b2YgdGhlIGNsdXN0ZXI="
    groups                 = {}
    events                 = true
    dry_run                = true
    pods                   = { c2 = { namespace = "gcp-symphony", image = "registry.example.com/compute:1", cpus = 3.5, memory_mb = 12288, max_machines = 100 } }
    templates              = { sym-pod-c2-4 = { pools = ["c2"], ncpus = 3, nram = 12288, max_number = 100 } }
  }

  assert {
    condition     = length(google_project_iam_custom_role.this) == 0 && length(google_pubsub_topic.events) == 0
    error_message = "The account needs no right in the project, and there is no event of pods."
  }

  assert {
    condition     = [for document in split("---\n", output.apply_manifests[0].content) : yamldecode(document).kind] == ["Namespace", "Role", "RoleBinding"]
    error_message = "Each namespace has a Role and its binding."
  }

  assert {
    condition     = yamldecode(split("---\n", output.apply_manifests[0].content)[1]).metadata.namespace == "gcp-symphony" && yamldecode(split("---\n", output.apply_manifests[0].content)[1]).rules == yamldecode(split("\n---\n", file("files/rbac.yaml"))[0]).rules
    error_message = "The Role is that of the kit."
  }

  assert {
    condition     = yamldecode(split("---\n", output.apply_manifests[0].content)[2]).subjects[0].name == "master@grid-project.iam.gserviceaccount.com"
    error_message = "The Role is bound to the account of the master."
  }

  assert {
    condition     = [for runner in output.master_runners : basename(runner.destination)] == ["cluster-ca.crt", "pod-spec-c2.yaml", "settings.yml", "hostfactory-configure.sh"]
    error_message = "The master gets the pods' spec and the cluster's authority."
  }

  assert {
    condition     = yamldecode(output.master_runners[1].content).spec.containers[0].env == [{ name = "HF_EGO_ATTRIBUTES", value = "[resourcemap gcp*cloudprovider]" }, { name = "HF_EGO_MASTER", value = "symphony-gcp-master-0" }, { name = "HF_EGO_MASTER_ADDRESS", value = "10.0.0.10" }, { name = "HF_EGO_PROFILE", value = "/opt/ibm/spectrumcomputing/profile.platform" }]
    error_message = "A pod has the master's name, and EGO's profile."
  }

  assert {
    condition     = yamldecode(output.master_runners[1].content).spec.hostAliases == [{ ip = "10.0.0.10", hostnames = ["symphony-gcp-master-0"] }]
    error_message = "A pod has the master's address in its hosts file."
  }

  assert {
    condition     = yamldecode(output.master_runners[1].content).spec.restartPolicy == "Never" && yamldecode(output.master_runners[1].content).spec.containers[0].resources.requests.cpu == "3.5" && can(yamldecode(output.master_runners[1].content).spec.containers[0].readinessProbe)
    error_message = "A pod ends once, asks for what it uses, and is ready when it has joined."
  }

  assert {
    condition     = endswith(output.master_runners[3].args, " gcpgkeinst egoadmin dry-run")
    error_message = "A dry run starts no loop."
  }

  assert {
    condition     = yamldecode(output.master_runners[2].content).pools.c2.pod_spec == "pod-spec-c2.yaml" && yamldecode(output.master_runners[2].content).pools.c2.endpoint == "https://203.0.113.7" && contains(yamldecode(output.master_runners[2].content).files, "cluster-ca.crt")
    error_message = "The pool names its spec, its cluster and the cluster's authority."
  }
}

run "the_dns_endpoint_needs_a_role_and_no_authority" {
  command = apply

  variables {
    cluster_endpoint       = "gke-0123456789abcdef.us-central1.gke.goog"
    cluster_ca_certificate = "b2YgdGhlIGNsdXN0ZXI="
    pods                   = { pods = { image = "registry.example.com/compute:1", cpus = 3.5, memory_mb = 12288, max_machines = 100 } }
    groups                 = {}
    templates              = { pods = { pools = ["pods"], ncpus = 3, nram = 12288, max_number = 100 } }
  }

  assert {
    condition     = keys(google_project_iam_member.this) == ["cluster"] && google_project_iam_custom_role.this["cluster"].permissions == tolist(["container.clusters.connect"])
    error_message = "The account may connect."
  }

  assert {
    condition     = !contains([for runner in output.master_runners : basename(runner.destination)], "cluster-ca.crt")
    error_message = "Every system trusts the authority of the endpoint."
  }
}

run "a_group_of_another_name_is_named" {
  command = apply

  variables {
    groups = { c2 = { zone = "us-central1-b", name = "symphony-gcp-mig", max_machines = 10 } }
  }

  assert {
    condition     = yamldecode(output.master_runners[0].content).pools.c2.group == "symphony-gcp-mig" && yamldecode(output.master_runners[0].content).pools.c2.zone == "us-central1-b"
    error_message = "The pool has the group's own name and zone."
  }
}

run "a_bundle_by_http_is_refused" {
  command = plan
  variables {
    bundle = { uri = "http://example.com/bundle.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  }
  expect_failures = [var.bundle]
}

run "a_bundle_without_its_sum_is_refused" {
  command = plan
  variables {
    bundle = { uri = "gs://bucket/bundle.tar.gz", sha256 = "" }
  }
  expect_failures = [var.bundle]
}

run "a_python_without_wheels_is_refused" {
  command = plan
  variables {
    python_package = "python39"
  }
  expect_failures = [var.python_package]
}

run "a_master_that_is_no_host_is_refused" {
  command = plan
  variables {
    ego_master = { name = "", address = "master" }
  }
  expect_failures = [var.ego_master]
}

run "attributes_that_ego_would_refuse_are_refused" {
  command = plan
  variables {
    ego_master = { name = "master", attributes = "gcp*cloudprovider" }
  }
  expect_failures = [var.ego_master]
}

run "a_group_of_another_region_is_refused" {
  command = plan
  variables {
    groups = { c2 = { zone = "europe-west1-b", max_machines = 10 } }
  }
  expect_failures = [var.groups]
}

run "pods_without_a_cluster_are_refused" {
  command = plan
  variables {
    pods = { pods = { image = "registry.example.com/compute:1", cpus = 3.5, memory_mb = 12288, max_machines = 100 } }
  }
  expect_failures = [var.pods]
}

run "a_pool_has_a_pod_spec_of_its_own" {
  command = apply

  variables {
    cluster_endpoint       = "203.0.113.7"
    cluster_ca_certificate = "b2YgdGhlIGNsdXN0ZXI="
    pods                   = { own = { pod_spec = "spec: {containers: []}", max_machines = 100 } }
    groups                 = {}
    templates              = { own = { pools = ["own"], ncpus = 3, nram = 12288, max_number = 100 } }
  }

  assert {
    condition     = output.master_runners[1].content == "spec: {containers: []}"
    error_message = "The pool's own spec goes to the master."
  }
}

run "a_pod_spec_that_is_none_is_refused" {
  command = plan
  variables {
    cluster_endpoint       = "203.0.113.7"
    cluster_ca_certificate = "b2YgdGhlIGNsdXN0ZXI="
    pods                   = { own = { pod_spec = "pod-spec.yaml", max_machines = 100 } }
  }
  expect_failures = [var.pods]
}

run "half_a_pod_and_an_address_without_its_authority_are_refused" {
  command = plan
  variables {
    cluster_endpoint = "203.0.113.7"
    pods             = { half = { image = "registry.example.com/compute:1", max_machines = 100 } }
  }
  expect_failures = [var.pods, var.cluster_ca_certificate]
}

run "a_mode_that_hostfactory_lacks_is_refused" {
  command = plan
  variables {
    requestors = { symAinst = { mode = "PUSH" } }
  }
  expect_failures = [var.requestors]
}

run "words_that_a_shell_would_split_are_refused" {
  command = plan
  variables {
    symphony_install_dir  = "/opt/ibm/spectrum computing"
    ego_user              = "ego admin"
    service_account_email = "master"
    deployment_name       = "Symphony"
    cluster_endpoint      = "https://203.0.113.7"
  }
  expect_failures = [var.symphony_install_dir, var.ego_user, var.service_account_email, var.deployment_name, var.cluster_endpoint]
}
