# terraform test: a cluster that is made with its DNS endpoint open. No account, no network.

mock_provider "google" {
  mock_resource "google_container_cluster" {
    defaults = {
      control_plane_endpoints_config = {
        dns_endpoint_config = { endpoint = "gke-0123456789abcdef.us-central1.gke.goog" }
      }
    }
  }
}

variables {
  project_id = "grid-project"
  region     = "us-central1"
  endpoint   = "dns"

  credentials = "/etc/hostfactory/federation.json"
  pods = {
    pods = { image = "registry.example.com/compute:1", env = { HF_EGO_MASTER = "master1" }, cpus = 4, memory_mb = 8192, max_machines = 100 }
  }
  templates = {
    Small = { pools = ["pods"], ncpus = 4, nram = 8192, max_number = 1000 }
  }
}

run "the_dns_endpoint_is_opened_and_the_loop_may_use_it" {
  command = apply

  assert {
    condition     = google_container_cluster.this[0].control_plane_endpoints_config[0].dns_endpoint_config[0].allow_external_traffic
    error_message = "The endpoint answers from outside of the network."
  }

  assert {
    condition     = yamldecode(output.provisioner_yaml).pools.pods.endpoint == "https://gke-0123456789abcdef.us-central1.gke.goog" && !contains(keys(output.files), "cluster-ca.crt")
    error_message = "provisioner.yaml names the endpoint, and needs no file for it."
  }

  assert {
    condition     = yamldecode(output.provisioner_yaml).pools.pods.credentials == "/etc/hostfactory/federation.json"
    error_message = "provisioner.yaml names the federation's configuration."
  }

  assert {
    condition     = toset(google_project_iam_custom_role.cluster[0].permissions) == toset(["container.clusters.connect"]) && google_project_iam_member.cluster[0].member == google_service_account.loop.member
    error_message = "The loop's account may connect, and no more."
  }
}
