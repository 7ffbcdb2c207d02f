variable "project_id" {
  description = "The Google Cloud project of the groups and of the subscription."
  type        = string

  validation {
    condition     = can(regex("^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id is the id of a project, such as my-grid-project, not its name or number."
  }
}

variable "provider_name" {
  description = "HostFactory's name of the provider instance."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$", var.provider_name))
    error_message = "provider_name has 1 to 63 letters, digits, '-', '_' or '.', and begins and ends with a letter or digit."
  }
}

variable "name_prefix" {
  description = "First part of the names of machines and groups."
  type        = string

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$", var.name_prefix))
    error_message = "name_prefix has at most 20 lower-case letters, digits or '-', begins with a letter and does not end in '-'."
  }
}

variable "autopilot" {
  description = "True if the cluster is an Autopilot cluster, which has no node pools to choose."
  type        = bool
  default     = false
}

variable "endpoint" {
  description = "Address of the cluster's API server, which accepts Google credentials. If null, a kubeconfig or the service account of the loop's pod is used."
  type        = string
  default     = null

  validation {
    condition     = var.endpoint == null || can(regex("^https://[A-Za-z0-9.-]+(:[0-9]+)?$", var.endpoint))
    error_message = "endpoint is an address such as https://203.0.113.7: over http:// the loop sends no credentials."
  }
}

variable "ca_certificate" {
  description = "Certificate authority of the endpoint (PEM). If null, the system has to trust the authority, as for the DNS endpoint."
  type        = string
  default     = null
}

variable "kubeconfig" {
  description = "Path of a kubeconfig on the host of the loop, instead of the endpoint; null for none."
  type        = string
  default     = null
}

variable "credentials" {
  description = "Path on the host of the loop of a workload identity federation's configuration, or of a key file, by which all pools log in to Google. If null, they log in as the machine's own account."
  type        = string
  default     = null

  validation {
    condition     = var.credentials == null || can(regex("^[^{]", trimspace(var.credentials)))
    error_message = "credentials is the path of a file, such as /etc/hostfactory/federation.json, and not its content."
  }
}

variable "pods" {
  description = "Pools of pods, by name."
  type = map(object({
    namespace    = optional(string, "symphony")
    image        = string
    env          = map(string)
    cpus         = number
    memory_mb    = number
    spot         = optional(bool, false)
    host_aliases = optional(map(list(string)), {})
    max_machines = number
  }))

  validation {
    condition     = alltrue([for pool in values(var.pods) : pool.cpus > 0 && pool.memory_mb > 0 && pool.max_machines > 0])
    error_message = "cpus, memory_mb and max_machines of pods are greater than 0."
  }

  validation {
    condition     = alltrue([for pool in values(var.pods) : try(trimspace(pool.env["HF_EGO_MASTER"]), "") != ""])
    error_message = "env of pods names HF_EGO_MASTER, EGO's management host, because a pod without it never joins EGO and is never ready."
  }

  validation {
    condition     = alltrue([for name in flatten([for pool in values(var.pods) : keys(pool.env)]) : can(regex("^[A-Za-z_][A-Za-z0-9_]*$", name))])
    error_message = "Names in env of pods have letters, digits or '_', and begin with no digit."
  }

  validation {
    condition     = alltrue([for name in keys(var.pods) : can(regex("^[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?$", name))])
    error_message = "Names of pods have at most 22 lower-case letters, digits or '-'."
  }
}

variable "groups" {
  description = "Managed instance groups, by the names of their pools. name is the name of the group, by default name_prefix followed by the name of the pool."
  type = map(object({
    name         = optional(string)
    zone         = optional(string)
    region       = optional(string)
    max_machines = number
  }))

  validation {
    condition     = alltrue([for group in values(var.groups) : (group.zone == null) != (group.region == null)])
    error_message = "Each of groups has either zone or region."
  }

  validation {
    condition     = alltrue([for group in values(var.groups) : group.max_machines > 0 && group.max_machines <= (group.zone == null ? 4000 : 1000)])
    error_message = "max_machines of groups is at most 1000 for a zonal group, and 4000 for a regional group, of which Google allows 2000 by default: add another group to the template's pools."
  }

  validation {
    condition     = alltrue([for name in keys(var.groups) : can(regex("^[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?$", name))])
    error_message = "Names of groups have at most 22 lower-case letters, digits or '-'."
  }

  validation {
    condition     = length(setintersection(keys(var.pods), keys(var.groups))) == 0
    error_message = "pods and groups have no name in common, because a template names its pools."
  }
}

variable "templates" {
  description = "HostFactory's templates, by id."
  type = map(object({
    pools      = list(string)
    ncpus      = number
    ncores     = optional(number, 1)
    nram       = number
    max_number = number
  }))

  validation {
    condition     = length(var.templates) > 0
    error_message = "templates names at least one template, because HostFactory requests machines by template."
  }

  validation {
    condition = alltrue([
      for template in values(var.templates) :
      length(template.pools) > 0 && length(setsubtract(template.pools, concat(keys(var.pods), keys(var.groups)))) == 0
    ])
    error_message = "pools of templates names at least one of pods and groups, and nothing else."
  }
}

variable "subscription" {
  description = "The subscription that carries events; null for none."
  type        = string
  default     = null
}
