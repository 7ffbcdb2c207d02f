locals {
  ca_file = "cluster-ca.crt" # beside provisioner.yaml
  # It is not read if a kubeconfig names the cluster, or no pool uses the endpoint.
  ca_certificate = var.endpoint == null || var.kubeconfig != null || length(var.pods) == 0 ? null : var.ca_certificate

  credentials = var.credentials == null ? {} : { credentials = var.credentials }

  group_names = { for name, group in var.groups : name => coalesce(group.name, "${var.name_prefix}-${name}") }

  pod_pools = {
    for name, pool in var.pods : name => merge(
      {
        kind         = "gke"
        namespace    = pool.namespace
        pod_spec     = "pod-specs/${name}.yaml"
        max_machines = pool.max_machines
      },
      var.endpoint == null || var.kubeconfig != null ? {} : merge({ endpoint = var.endpoint }, local.credentials),
      local.ca_certificate == null ? {} : { ca_file = local.ca_file },
      var.kubeconfig == null ? {} : { kubeconfig = var.kubeconfig },
    )
  }
  group_pools = {
    for name, group in var.groups : name => merge(
      {
        kind         = "mig"
        project      = var.project_id
        group        = local.group_names[name]
        max_machines = group.max_machines
      },
      group.zone == null ? { region = group.region } : { zone = group.zone },
      local.credentials,
    )
  }
  # Values of one type each, because Terraform requires it of all objects in a map.
  provisioner = merge(
    {
      id          = var.provider_name
      name_prefix = var.name_prefix
      pools       = merge(local.pod_pools, local.group_pools)
    },
    var.subscription == null ? {} : { events = { project = var.project_id, subscription = var.subscription } },
  )

  provider_templates = {
    templates = [
      for id, template in var.templates : {
        templateId = id
        maxNumber  = template.max_number
        attributes = {
          type   = ["String", "X86_64"]
          ncpus  = ["Numeric", tostring(template.ncpus)]
          ncores = ["Numeric", tostring(template.ncores)]
          nram   = ["Numeric", tostring(template.nram)]
        }
        pools = template.pools
      }
    ]
  }

  spot_key     = "cloud.google.com/gke-spot"
  machines_key = "hostfactory/machines" # label and taint of the cluster's node pools for machines
  pod_specs = {
    for name, pool in var.pods : name => {
      apiVersion = "v1"
      kind       = "Pod"
      metadata   = { annotations = { "cluster-autoscaler.kubernetes.io/safe-to-evict" = "false" } }
      spec = merge(length(pool.host_aliases) == 0 ? {} : {
        hostAliases = [for address, names in pool.host_aliases : { ip = address, hostnames = names }]
        }, {
        restartPolicy                 = "Never"
        terminationGracePeriodSeconds = pool.spot ? 15 : 30 # a Spot node gives pods 15 seconds
        automountServiceAccountToken  = false
        nodeSelector = merge(
          var.autopilot ? {} : { (local.machines_key) = "true" },
          pool.spot ? { (local.spot_key) = "true" } : {},
        )
        tolerations = [
          for key in concat(var.autopilot ? [] : [local.machines_key], pool.spot ? [local.spot_key] : []) :
          { key = key, operator = "Equal", value = "true", effect = "NoSchedule" }
        ]
        containers = [{
          name  = "symphony-compute"
          image = pool.image
          env   = [for key, value in pool.env : { name = key, value = value }]
          resources = {
            requests = { cpu = tostring(pool.cpus), memory = "${pool.memory_mb}Mi" }
            limits   = { memory = "${pool.memory_mb}Mi" }
          }
          # Ready, and so reported to HostFactory, once the host has joined its cluster.
          readinessProbe  = { exec = { command = ["test", "-e", "/run/hf/ready"] }, periodSeconds = 5 }
          securityContext = { allowPrivilegeEscalation = false, capabilities = { drop = ["ALL"] } }
        }]
      })
    }
  }

  provisioner_yaml        = "# Made by Terraform: change its variables, not this file.\n${yamlencode(local.provisioner)}"
  provider_config_json    = "${jsonencode({ GCP_PROJECT_ID = var.project_id })}\n"
  provider_templates_json = "${jsonencode(local.provider_templates)}\n"
}
