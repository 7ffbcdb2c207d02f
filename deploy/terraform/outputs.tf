output "files" {
  description = "The files of HostFactory's provider configuration directory, by name. Write each file there, then run `provisioner check --live`."
  value       = module.settings.files
}

output "provisioner_yaml" {
  description = "provisioner.yaml, ready to use."
  value       = module.settings.provisioner_yaml
}

output "provider_config_json" {
  description = "HostFactory's <provider>prov_config.json."
  value       = module.settings.provider_config_json
}

output "provider_templates_json" {
  description = "HostFactory's <provider>prov_templates.json."
  value       = module.settings.provider_templates_json
}

output "account" {
  description = "The loop's Google service account. Attach it to HostFactory's VM, or annotate the Kubernetes service account of the loop's pod with it (iam.gke.io/gcp-service-account)."
  value       = google_service_account.loop.email
}

output "cluster" {
  description = "Name and location of the GKE cluster, for `gcloud container clusters get-credentials`; null without a cluster."
  value       = local.has_cluster ? { name = google_container_cluster.this[0].name, location = var.region } : null
}

output "subscription" {
  description = "The subscription that provisioner.yaml names under events; null without a subscription."
  value       = local.has_events ? google_pubsub_subscription.events[0].id : null
}

output "overlay_values" {
  description = "Values for data in deploy/kustomize/overlays/gke-workload-identity/values.yaml. VERSION is the version of the image that you push."
  value = merge(
    { instance = var.provider_name, googleServiceAccount = google_service_account.loop.email },
    !local.has_cluster ? {} : {
      image               = "${local.registry}/provisioner:VERSION"
      nodesServiceAccount = google_service_account.nodes[0].email
      apiServer           = "${google_container_cluster.this[0].private_cluster_config[0].private_endpoint}/32"
    },
    var.share == null ? {} : {
      nfsServer = one(google_filestore_instance.state[0].networks[0].ip_addresses)
      nfsPath   = "/${one(google_filestore_instance.state[0].file_shares).name}"
    },
  )
}

output "share" {
  description = "Address and export of the state directory's share, for NFS mounts; null without a share."
  value = var.share == null ? null : {
    address = one(google_filestore_instance.state[0].networks[0].ip_addresses)
    export  = "/state"
  }
}
