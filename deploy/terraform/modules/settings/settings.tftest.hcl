# terraform test: no account, no network.

variables {
  project_id    = "grid-project"
  provider_name = "gcpinst"
  name_prefix   = "hf"
  pods = {
    pods = { namespace = "symphony", image = "registry.example.com/compute:1", env = { HF_EGO_MASTER = "master1" }, cpus = 4, memory_mb = 8192, spot = true, max_machines = 100 }
  }
  groups = {
    zonal    = { zone = "us-central1-a", max_machines = 500 }
    regional = { region = "us-central1", max_machines = 2000 }
  }
  templates = {
    Small = { pools = ["pods", "zonal", "regional"], ncpus = 4, ncores = 1, nram = 8192, max_number = 1000 }
  }
  subscription = "hf-events"
}

run "renders_what_was_given" {
  command = apply

  assert {
    condition     = yamldecode(output.provisioner_yaml).pools.regional == { kind = "mig", project = "grid-project", region = "us-central1", group = "hf-regional", max_machines = 2000 }
    error_message = "The pool of a regional group names region, project and group."
  }

  assert {
    condition     = yamldecode(output.provisioner_yaml).events.subscription == "hf-events"
    error_message = "The subscription is named under events."
  }

  assert {
    condition     = jsondecode(output.provider_templates_json).templates[0].pools == ["pods", "zonal", "regional"]
    error_message = "A template keeps the order of its pools."
  }

  assert {
    condition     = toset(keys(output.files)) == toset(["provisioner.yaml", "gcpinstprov_config.json", "gcpinstprov_templates.json", "pod-specs/pods.yaml"])
    error_message = "The files have the names that HostFactory and provisioner.yaml expect."
  }

  assert {
    condition     = yamldecode(output.files["pod-specs/pods.yaml"]).spec.nodeSelector == { "hostfactory/machines" = "true", "cloud.google.com/gke-spot" = "true" }
    error_message = "A Spot pod of a standard cluster chooses the Spot nodes for machines."
  }

  assert {
    condition     = yamldecode(output.files["pod-specs/pods.yaml"]).spec.containers[0].env == [{ name = "HF_EGO_MASTER", value = "master1" }]
    error_message = "A pod has the environment that its pool names."
  }
}

run "google_credentials_alone_open_the_cluster" {
  command = apply

  variables {
    endpoint       = "https://203.0.113.7"
    ca_certificate = "of the cluster"
  }

  assert {
    condition     = yamldecode(output.provisioner_yaml).pools.pods.endpoint == "https://203.0.113.7" && output.files[yamldecode(output.provisioner_yaml).pools.pods.ca_file] == "of the cluster"
    error_message = "Pods name the endpoint, and its authority is among the files."
  }

  assert {
    condition     = !can(yamldecode(output.provisioner_yaml).pools.zonal.endpoint)
    error_message = "A group has no endpoint of a cluster."
  }
}

run "the_dns_endpoint_needs_no_file" {
  command = apply

  variables {
    endpoint = "https://gke-0123456789abcdef.us-central1.gke.goog"
  }

  assert {
    condition     = !can(yamldecode(output.provisioner_yaml).pools.pods.ca_file) && !contains(keys(output.files), "cluster-ca.crt")
    error_message = "Every system trusts the authority of the endpoint."
  }
}

run "a_kubeconfig_stands_in_the_place_of_the_endpoint" {
  command = apply

  variables {
    endpoint       = "https://203.0.113.7"
    ca_certificate = "of the cluster"
    kubeconfig     = "kubeconfig"
  }

  assert {
    condition     = yamldecode(output.provisioner_yaml).pools.pods.kubeconfig == "kubeconfig" && !can(yamldecode(output.provisioner_yaml).pools.pods.endpoint) && !can(yamldecode(output.provisioner_yaml).pools.pods.ca_file)
    error_message = "A pool names its cluster once."
  }
}

run "a_federation_s_configuration_is_named_by_all_who_ask_google" {
  command = apply

  variables {
    endpoint    = "https://203.0.113.7"
    credentials = "/etc/hostfactory/federation.json"
  }

  assert {
    condition     = alltrue([for pool in values(yamldecode(output.provisioner_yaml).pools) : pool.credentials == "/etc/hostfactory/federation.json"])
    error_message = "Each pool names the credentials: pools of pods with an endpoint, and groups."
  }
}

run "without_one_no_pool_names_any" {
  command = apply

  variables {
    endpoint = "https://203.0.113.7"
  }

  assert {
    condition     = !can(regex("credentials", output.provisioner_yaml))
    error_message = "The machine's own account logs in."
  }
}

run "a_kubeconfig_logs_in_by_itself" {
  command = apply

  variables {
    endpoint    = "https://203.0.113.7"
    kubeconfig  = "kubeconfig"
    credentials = "/etc/hostfactory/federation.json"
  }

  assert {
    condition     = !can(yamldecode(output.provisioner_yaml).pools.pods.credentials) && yamldecode(output.provisioner_yaml).pools.zonal.credentials == "/etc/hostfactory/federation.json"
    error_message = "A pool with a kubeconfig has no credentials of its own."
  }
}

run "a_key_in_the_place_of_its_path_is_refused" {
  command = plan

  variables {
    credentials = "{\"type\": \"service_account\"}"
  }

  expect_failures = [var.credentials]
}

run "groups_alone_need_no_authority" {
  command = apply

  variables {
    endpoint       = "https://203.0.113.7"
    ca_certificate = "of the cluster"
    pods           = {}
    templates      = { Small = { pools = ["zonal"], ncpus = 4, ncores = 1, nram = 8192, max_number = 1000 } }
  }

  assert {
    condition     = !contains(keys(output.files), "cluster-ca.crt")
    error_message = "A file that no pool names is not written."
  }
}

run "an_endpoint_to_which_no_credentials_are_sent_is_refused" {
  command = plan

  variables {
    endpoint = "http://203.0.113.7"
  }

  expect_failures = [var.endpoint]
}

run "autopilot_has_no_nodes_to_choose" {
  command = apply

  variables {
    autopilot    = true
    subscription = null
  }

  assert {
    condition     = yamldecode(output.files["pod-specs/pods.yaml"]).spec.nodeSelector == { "cloud.google.com/gke-spot" = "true" }
    error_message = "On Autopilot a pod chooses Spot alone."
  }

  assert {
    condition     = !can(yamldecode(output.provisioner_yaml).events)
    error_message = "Without a subscription there is no section events."
  }
}

run "a_group_in_a_zone_and_a_region_is_refused" {
  command = plan

  variables {
    groups = { zonal = { zone = "us-central1-a", region = "us-central1", max_machines = 1 }, regional = { region = "us-central1", max_machines = 1 } }
  }

  expect_failures = [var.groups]
}

run "a_group_bigger_than_google_allows_is_refused" {
  command = plan

  variables {
    groups = { zonal = { zone = "us-central1-a", max_machines = 1001 }, regional = { region = "us-central1", max_machines = 1 } }
  }

  expect_failures = [var.groups]
}

run "a_pool_that_is_nowhere_is_refused" {
  command = plan

  variables {
    templates = { Small = { pools = ["elsewhere"], ncpus = 4, ncores = 1, nram = 8192, max_number = 1 } }
  }

  expect_failures = [var.templates]
}

run "a_pod_that_would_join_nothing_is_refused" {
  command = plan

  variables {
    pods = { pods = { image = "i", env = { HF_EGO_MASTER = " " }, cpus = 4, memory_mb = 8192, max_machines = 1 } }
  }

  expect_failures = [var.pods]
}

run "a_variable_that_kubernetes_would_refuse_is_refused" {
  command = plan

  variables {
    pods = { pods = { image = "i", env = { HF_EGO_MASTER = "master1", "1st" = "a" }, cpus = 4, memory_mb = 8192, max_machines = 1 } }
  }

  expect_failures = [var.pods]
}

run "a_name_that_compute_would_refuse_is_refused" {
  command = plan

  variables {
    name_prefix = "Grid_"
  }

  expect_failures = [var.name_prefix]
}

run "a_project_s_number_is_refused" {
  command = plan

  variables {
    project_id = "123456789012"
  }

  expect_failures = [var.project_id]
}
