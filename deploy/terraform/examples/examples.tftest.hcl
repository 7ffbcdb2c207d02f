# terraform test -test-directory=examples -var-file=examples/grid.tfvars -var-file=examples/loop-in-pod.tfvars: as each of
# them says, with a provider that makes nothing.

mock_provider "google" {
  mock_resource "google_container_cluster" {
    defaults = {
      master_auth            = { cluster_ca_certificate = "b2YgdGhlIGNsdXN0ZXI=" }
      private_cluster_config = { public_endpoint = "203.0.113.7" }
    }
  }
}

run "a_loop_in_a_pod_has_a_share_and_needs_no_address" {
  command = apply

  assert {
    condition     = length(google_filestore_instance.state) == 1 && !can(yamldecode(output.provisioner_yaml).pools.pods.endpoint)
    error_message = "loop-in-pod.tfvars makes the share, and lets the pod's account count."
  }
}

run "a_loop_on_hostfactory_s_host_needs_neither_share_nor_kubeconfig" {
  command = apply

  variables {
    endpoint = "public"
    share    = null
  }

  assert {
    condition     = length(google_filestore_instance.state) == 0 && yamldecode(output.provisioner_yaml).pools["pods-spot"].endpoint == "https://203.0.113.7" && output.files["cluster-ca.crt"] == "of the cluster"
    error_message = "grid.tfvars alone reaches the cluster by its address."
  }

  assert {
    condition     = contains([for range in google_container_cluster.this[0].master_authorized_networks_config[0].cidr_blocks : range.cidr_block], "198.51.100.0/28")
    error_message = "The cluster's API accepts the addresses of the example."
  }

  assert {
    condition     = alltrue([for pool in values(var.pods) : startswith(pool.image, format("%s-docker.pkg.dev/%s/%s/", google_artifact_registry_repository.images[0].location, google_artifact_registry_repository.images[0].project, google_artifact_registry_repository.images[0].repository_id))])
    error_message = "The pods' image lies in the registry that is made."
  }
}
