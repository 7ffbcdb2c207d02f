variable "project_id" {
  description = "The Google Cloud project in which everything is made. It must exist and have billing enabled."
  type        = string
}

variable "region" {
  description = "Region of the subnet, the cluster and the share, such as us-central1."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region is a region such as us-central1, not a zone."
  }
}

variable "zones" {
  description = "Zones of the cluster's nodes; default all that the region gives. The first one holds the share."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for zone in var.zones : startswith(zone, "${var.region}-")])
    error_message = "zones lists zones of var.region, such as us-central1-a for us-central1."
  }
}

variable "provider_name" {
  description = "HostFactory's name of the provider instance: the id of provisioner.yaml, and the first part of both HF files' names."
  type        = string
  default     = "gcpinst"
}

variable "name_prefix" {
  description = "First part of the names of machines, groups and of all that is made here. Two deployments in a project need different ones."
  type        = string
  default     = "hf"
}

variable "labels" {
  description = "Labels of all that can have some: how bills are told apart."
  type        = map(string)
  default     = { app = "hostfactory" }
}

variable "deletion_protection" {
  description = "Whether cluster, secrets and a share of tier ZONAL or REGIONAL refuse to be destroyed. Default false, so that terraform destroy asks nothing: machines are rented, and the loop makes its memory again from what runs. Set true once the share holds a state that you want to keep."
  type        = bool
  default     = false
}

variable "network" {
  description = "The network: a new one with two subnets of these ranges, for nodes and for groups, or, where subnetwork is given, an existing one (self links; its secondary ranges must be named pods and services; groups are in machines_subnetwork, or there too)."
  type = object({
    network             = optional(string)
    subnetwork          = optional(string)
    machines_subnetwork = optional(string)
    nodes_range         = optional(string, "10.60.0.0/20")
    machines_range      = optional(string, "10.62.0.0/20")
    pods_range          = optional(string, "10.64.0.0/14")
    services_range      = optional(string, "10.61.0.0/20")
  })
  default = {}

  validation {
    condition     = (var.network.network == null) == (var.network.subnetwork == null)
    error_message = "network.network and network.subnetwork are given together, or not at all."
  }
}

variable "symphony_ranges" {
  description = "Address ranges of Symphony's management hosts, which must reach machines and be reached by them; default none beside the subnet itself."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for range in var.symphony_ranges : can(cidrhost(range, 0))])
    error_message = "symphony_ranges lists address ranges such as 10.0.0.0/16."
  }
}

variable "cluster" {
  description = "The GKE cluster: standard with the node pools below, or Autopilot, which makes its own. maintenance is when Google may upgrade it: a first window from start to end, and how it recurs, such as FREQ=WEEKLY;BYDAY=SA,SU; default at any hour. null: no cluster, machines are instances only."
  type = object({
    autopilot         = optional(bool, false)
    release_channel   = optional(string, "REGULAR")
    authorized_ranges = optional(list(string), [])
    system_machine    = optional(string, "e2-standard-4")
    maintenance       = optional(object({ start = string, end = string, recurrence = string }))
    node_pools = optional(map(object({
      machine_type = string
      spot         = optional(bool, false)
      max_nodes    = number
      disk_gb      = optional(number, 100)
      })), {
      workers      = { machine_type = "n2-standard-8", max_nodes = 50 }
      workers-spot = { machine_type = "n2-standard-8", max_nodes = 50, spot = true }
    })
  })
  default = {}

  validation {
    condition     = var.cluster == null || contains(["RAPID", "REGULAR", "STABLE", "EXTENDED"], try(var.cluster.release_channel, ""))
    error_message = "cluster.release_channel is RAPID, REGULAR, STABLE or EXTENDED."
  }

  validation {
    condition     = try(var.cluster.maintenance, null) == null || try(timecmp(var.cluster.maintenance.start, var.cluster.maintenance.end) < 0 && startswith(var.cluster.maintenance.recurrence, "FREQ="), false)
    error_message = "cluster.maintenance has a start such as 2026-01-03T22:00:00Z, an end after it, and a recurrence such as FREQ=WEEKLY;BYDAY=SA,SU."
  }
}

variable "pods" {
  description = "Pools of pods, by name: what each pod is, and how many there may be. They need a cluster. env names HF_EGO_MASTER, EGO's management host, and what else docs/deploy-machine.md has."
  type = map(object({
    namespace    = optional(string) # symphony
    image        = string
    env          = map(string)
    cpus         = number
    memory_mb    = number
    spot         = optional(bool) # false
    max_machines = number
  }))
  default = {}

  validation {
    condition     = length(var.pods) == 0 || var.cluster != null
    error_message = "pods need a cluster: leave out pods, or give cluster."
  }
}

variable "groups" {
  description = "Managed instance groups, by name: zonal (zone) or regional (region, and perhaps its zones). image is the machine's boot image, startup_script what makes it join Symphony, metadata what that and the shutdown script read besides; metadata_from_file the same as files."
  type = map(object({
    zone               = optional(string)
    region             = optional(string)
    zones              = optional(list(string), [])
    machine_type       = string
    image              = string
    spot               = optional(bool, false)
    disk_gb            = optional(number, 50)
    disk_type          = optional(string, "pd-balanced")
    startup_script     = optional(string, "")
    metadata           = optional(map(string), {})
    metadata_from_file = optional(map(string), {})
    max_machines       = number
  }))
  default = {}

  validation {
    condition     = alltrue([for path in flatten([for group in values(var.groups) : values(group.metadata_from_file)]) : fileexists(path)])
    error_message = "metadata_from_file of groups names files, as seen from where Terraform runs."
  }

  validation {
    condition = alltrue(flatten([for group in values(var.groups) : [
      for place in concat([try(coalesce(group.zone, group.region), var.region)], group.zones) : place == var.region || startswith(place, "${var.region}-")
    ]]))
    error_message = "groups lie in the region of their subnet, ${var.region}, and these do not: ${join(", ", flatten([for name, group in var.groups : [
      for place in concat([try(coalesce(group.zone, group.region), var.region)], group.zones) : "${name} in ${place}" if place != var.region && !startswith(place, "${var.region}-")
    ]]))}."
  }
}

variable "templates" {
  description = "HostFactory's templates, by id: what a machine has, and the pools (of pods and groups) that can make it, in order of preference."
  type = map(object({
    pools      = list(string)
    ncpus      = number
    ncores     = optional(number) # 1
    nram       = number
    max_number = number
  }))
}

variable "endpoint" {
  description = "By which address of the cluster a loop on HostFactory's host reaches it with its Google account alone: public or private, an address that answers symphony_ranges and authorized_ranges; or dns, a name that answers whoever Google's IAM lets in, from where Google's APIs are reached. null: the loop is a pod of the cluster, or kubeconfig names the cluster."
  type        = string
  default     = "public"

  validation {
    condition     = var.endpoint == null || contains(["public", "private", "dns"], coalesce(var.endpoint, "none"))
    error_message = "endpoint is public, private, dns or null."
  }
}

variable "kubeconfig" {
  description = "Path of a kubeconfig on the host of the loop, in the place of the endpoint; default none."
  type        = string
  default     = null
}

variable "credentials" {
  description = "Path on the host of the loop of a workload identity federation's configuration, or of a key file, by which it logs in to Google; default none: as the account that this module makes, of the machine or pod that it runs on."
  type        = string
  default     = null
}

variable "kubernetes_account" {
  description = "Kubernetes service account of the loop's pod, as NAMESPACE/NAME: it acts as the loop's Google account by Workload Identity."
  type        = string
  default     = "hostfactory/provisioner"

  validation {
    condition     = can(regex("^[a-z0-9-]+/[a-z0-9-]+$", var.kubernetes_account))
    error_message = "kubernetes_account is NAMESPACE/NAME, such as hostfactory/provisioner."
  }
}

variable "account" {
  description = "Name of the loop's Google service account; default hostfactory-provisioner, and with another name_prefix than hf that prefix and -loop, so that no deployment has another's."
  type        = string
  default     = null
}

variable "events" {
  description = "Whether a log sink feeds a Pub/Sub subscription, so that the loop hears of preemptions seconds earlier. Without groups nothing comes."
  type        = bool
  default     = true
}

variable "secrets" {
  description = "Secrets in Secret Manager that the loop's pod mounts (the component secret-csi), by name, such as hostfactory-metrics-token and hostfactory-proxy; default none. They are made empty: add their first version before the pod starts."
  type        = list(string)
  default     = []

  validation {
    condition     = length(var.secrets) == 0 || var.cluster != null
    error_message = "secrets are mounted by a cluster: leave out secrets, or give cluster."
  }
}

variable "share" {
  description = "A Filestore share for the state directory, where HostFactory's host and the loop's pod both mount it; default none: the loop runs on HostFactory's host. clients are the address ranges that may mount it, of which none may overlap another; default those of the nodes and of symphony_ranges, and, in a network that exists, the whole of it. Root is root for those that symphony_ranges lists, or for all where it lists none of them. A Shared VPC needs private_service_access, which its host project has set up."
  type = object({
    tier                   = optional(string, "BASIC_HDD")
    capacity               = optional(number, 1024)
    clients                = optional(list(string))
    private_service_access = optional(bool, false)
  })
  default = null

  validation {
    condition     = var.share == null || contains(["BASIC_HDD", "BASIC_SSD", "ZONAL", "REGIONAL"], try(var.share.tier, ""))
    error_message = "share.tier is BASIC_HDD, BASIC_SSD, ZONAL or REGIONAL."
  }

  validation {
    condition     = var.share == null || try(var.share.capacity >= (var.share.tier == "BASIC_SSD" ? 2560 : 1024), false)
    error_message = "share.capacity is 1024 GB at least, and with tier BASIC_SSD 2560."
  }

  validation {
    condition     = var.share == null || try(var.share.tier, "") == "REGIONAL" || length(var.zones) > 0
    error_message = "share lies in the first of var.zones: name some, or choose tier REGIONAL."
  }
}
