output "group_names" {
  description = "The name of each group in Google Cloud."
  value       = local.group_names
}

output "provisioner_yaml" {
  description = "provisioner.yaml."
  value       = local.provisioner_yaml
}

output "provider_config_json" {
  description = "HostFactory's <provider>prov_config.json."
  value       = local.provider_config_json
}

output "provider_templates_json" {
  description = "HostFactory's <provider>prov_templates.json."
  value       = local.provider_templates_json
}

output "files" {
  description = "All files by name."
  value = merge(
    {
      "provisioner.yaml"                        = local.provisioner_yaml
      "${var.provider_name}prov_config.json"    = local.provider_config_json
      "${var.provider_name}prov_templates.json" = local.provider_templates_json
    },
    local.ca_certificate == null ? {} : { (local.ca_file) = local.ca_certificate },
    { for name, spec in local.pod_specs : "pod-specs/${name}.yaml" => yamlencode(spec) },
  )
}
