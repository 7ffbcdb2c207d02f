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
  description = "Zones of the cluster's nodes, by default all zones of the region. The share is in the first zone."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for zone in var.zones : startswith(zone, "${var.region}-")])
    error_message = "zones lists zones of var.region, such as us-central1-a for us-central1."
  }
}

variable "provider_name" {
  description = "HostFactory's name of the provider instance, which is also the id in provisioner.yaml and the first part of the names of HostFactory's two files."
  type        = string
  default     = "gcpinst"
}

variable "name_prefix" {
  description = "First part of the names of machines, groups and everything that is made here. Each deployment in a project needs a different one."
  type        = string
  default     = "hf"
}

variable "labels" {
  description = "Labels of all resources that can have labels, for example to group costs in a bill."
  type        = map(string)
  default     = { app = "hostfactory" }
}

variable "deletion_protection" {
  description = "True to protect cluster, secrets and a share of tier ZONAL or REGIONAL from destruction. Default false, so that terraform destroy needs no change first: machines are rented, and the loop rebuilds its memory from the running machines. Set true once the share has a state that you want to keep."
  type        = bool
  default     = false
}

variable "network" {
  description = "The network: a new network with two subnets of these ranges, for nodes and for groups; or, if subnetwork is given, an existing network. network and subnetwork are then self links, the secondary ranges of subnetwork must be named pods and services, and groups are in machines_subnetwork, by default in subnetwork."
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
  description = "Address ranges of Symphony's management hosts, which must reach machines and be reached by them. By default only the subnet itself is allowed."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for range in var.symphony_ranges : can(cidrhost(range, 0))])
    error_message = "symphony_ranges lists address ranges such as 10.0.0.0/16."
  }
}

variable "cluster" {
  description = "The GKE cluster: standard with the node pools below, or Autopilot, which makes its own. maintenance limits the time of Google's upgrades to a window from start to end and its recurrence, such as FREQ=WEEKLY;BYDAY=SA,SU; by default any time. If null, there is no cluster, and all machines are instances."
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
  description = "Pools of pods, by name: image and size of a pod, and the largest number of pods. They need a cluster. env has HF_EGO_MASTER, EGO's management host, and other settings of docs/deploy-machine.md."
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
  description = "Managed instance groups, by name: zonal (zone) or regional (region, and perhaps its zones). image is the boot image, startup_script the script that joins Symphony, metadata the settings that this and the shutdown script read; metadata_from_file has more metadata as paths of files."
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
    error_message = "groups are in the region of their subnet, ${var.region}, but these are not: ${join(", ", flatten([for name, group in var.groups : [
      for place in concat([try(coalesce(group.zone, group.region), var.region)], group.zones) : "${name} in ${place}" if place != var.region && !startswith(place, "${var.region}-")
    ]]))}."
  }
}

variable "templates" {
  description = "HostFactory's templates, by id: the cores and memory of a machine, and the pools (of pods and groups) that can make it, in order of preference."
  type = map(object({
    pools      = list(string)
    ncpus      = number
    ncores     = optional(number) # 1
    nram       = number
    max_number = number
  }))
}

variable "endpoint" {
  description = "Endpoint of the cluster for a loop on HostFactory's host, which logs in with its Google account. public or private is an address that accepts symphony_ranges and authorized_ranges; dns is a name that is reached like Google's APIs and accepts every account with the right in IAM. If null, the loop is a pod of the cluster, or kubeconfig names the cluster."
  type        = string
  default     = "public"

  validation {
    condition     = var.endpoint == null || contains(["public", "private", "dns"], coalesce(var.endpoint, "none"))
    error_message = "endpoint is public, private, dns or null."
  }
}

variable "kubeconfig" {
  description = "Path of a kubeconfig on the host of the loop, instead of the endpoint; default none."
  type        = string
  default     = null
}

variable "credentials" {
  description = "Path on the host of the loop of a workload identity federation's configuration, or of a key file, by which it logs in to Google. By default it logs in as the account that this module makes, which its machine or pod has."
  type        = string
  default     = null
}

variable "kubernetes_account" {
  description = "Kubernetes service account of the loop's pod, as NAMESPACE/NAME. It acts as the loop's Google account by Workload Identity."
  type        = string
  default     = "hostfactory/provisioner"

  validation {
    condition     = can(regex("^[a-z0-9-]+/[a-z0-9-]+$", var.kubernetes_account))
    error_message = "kubernetes_account is NAMESPACE/NAME, such as hostfactory/provisioner."
  }
}

variable "account" {
  description = "Name of the loop's Google service account. The default is hostfactory-provisioner if name_prefix is hf, else the prefix followed by -loop, so that each deployment has its own."
  type        = string
  default     = null
}

variable "events" {
  description = "True to make a log sink and a Pub/Sub subscription, which announce preemptions to the loop seconds earlier. They are useful only with groups."
  type        = bool
  default     = true
}

variable "secrets" {
  description = "Secrets in Secret Manager that the loop's pod mounts (component secret-csi), by name, such as hostfactory-metrics-token and hostfactory-proxy; default none. They are made empty: add a first version of each before the pod starts."
  type        = list(string)
  default     = []

  validation {
    condition     = length(var.secrets) == 0 || var.cluster != null
    error_message = "secrets are mounted by a cluster: leave out secrets, or give cluster."
  }
}

variable "share" {
  description = "A Filestore share for the state directory, which HostFactory's host and the loop's pod both mount; default none, because the loop then runs on HostFactory's host. clients are the address ranges that may mount it, without overlaps; by default the nodes' range and symphony_ranges, and in an existing network the whole network. Root stays root for the ranges in symphony_ranges, or for all clients if no client is in symphony_ranges. A Shared VPC needs private_service_access, which its host project has to set up."
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
    error_message = "share.capacity is at least 1024 GB, and at least 2560 GB with tier BASIC_SSD."
  }

  validation {
    condition     = var.share == null || try(var.share.tier, "") == "REGIONAL" || length(var.zones) > 0
    error_message = "share is in the first of var.zones: set zones, or choose tier REGIONAL."
  }
}
