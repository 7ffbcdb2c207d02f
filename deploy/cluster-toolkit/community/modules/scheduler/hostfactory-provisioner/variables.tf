/**
 * Copyright 2026 The HostFactory provisioner authors
 *
 * Licensed under the Apache License, Version 2.0 (the "License");
 * you may not use this file except in compliance with the License.
 * You may obtain a copy of the License at
 *
 *      http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software
 * distributed under the License is distributed on an "AS IS" BASIS,
 * WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
 * See the License for the specific language governing permissions and
 * limitations under the License.
 */

variable "project_id" {
  description = "Project in which roles, events and machines are made."
  type        = string
}

variable "deployment_name" {
  description = "Name of the deployment: first part of the custom roles' names."
  type        = string

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,40}[a-z0-9])?$", var.deployment_name))
    error_message = "deployment_name has at most 42 lower-case letters, digits or '-', begins with a letter and does not end in '-'."
  }
}

variable "region" {
  description = "Region of the groups."
  type        = string
}

variable "zone" {
  description = "Zone of the groups without a zone of their own."
  type        = string
}

variable "labels" {
  description = "Labels of topic and subscription. Key-value pairs."
  type        = map(string)
}

variable "service_account_email" {
  description = "Service account of the master. The loop calls Google as this account, and the module gives it the roles."
  type        = string

  validation {
    condition     = can(regex("^[^@ ]+@[^@ ]+\\.[^@ ]+$", var.service_account_email))
    error_message = "service_account_email is an address such as master@my-grid-project.iam.gserviceaccount.com."
  }
}

variable "bundle" {
  description = "The provisioner's bundle from `make dist`: its address (gs:// or https://) and the sha256 of the archive."
  type = object({
    uri    = string
    sha256 = string
  })

  validation {
    condition     = can(regex("^(gs|https)://[A-Za-z0-9._~/%+=?&-]+$", var.bundle.uri))
    error_message = "bundle.uri begins with gs:// or https://, and has neither spaces nor quotes."
  }

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.bundle.sha256))
    error_message = "bundle.sha256 has 64 lower-case hexadecimal digits: `sha256sum` of the archive prints them."
  }
}

variable "python_package" {
  description = "Package of the Python that runs the provisioner; its program has the same name."
  type        = string
  default     = "python3.11"

  validation {
    condition     = can(regex("^python3\\.1[1-3]$", var.python_package))
    error_message = "python_package is python3.11, python3.12 or python3.13: the bundle has wheels for these."
  }
}

variable "symphony_install_dir" {
  description = "Directory of the master in which Symphony is installed (EGO_TOP)."
  type        = string
  default     = "/opt/ibm/spectrumcomputing"

  validation {
    condition     = can(regex("^/[A-Za-z0-9._/-]+$", var.symphony_install_dir))
    error_message = "symphony_install_dir is an absolute path without spaces."
  }
}

variable "ego_user" {
  description = "The user as which HostFactory runs its scripts."
  type        = string
  default     = "egoadmin"

  validation {
    condition     = can(regex("^[a-z_][a-z0-9_-]{0,31}$", var.ego_user))
    error_message = "ego_user is the name of a user of the master."
  }
}

variable "ego_master" {
  description = "Symphony's master that machines join: its name in EGO; its address, if that name does not resolve on machines; and the resource attributes of a machine that joins."
  type = object({
    name       = string
    address    = optional(string)
    attributes = optional(string)
  })

  validation {
    condition     = can(regex("^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$", var.ego_master.name))
    error_message = "ego_master.name is the name of a host, such as symphony-master-0."
  }

  validation {
    condition     = var.ego_master.address == null || can(cidrhost("${var.ego_master.address}/32", 0))
    error_message = "ego_master.address is an IPv4 address, such as 10.0.0.10."
  }

  validation {
    condition     = var.ego_master.attributes == null || can(regex("^(\\[resource [A-Za-z_][A-Za-z0-9_]*\\]|\\[resourcemap [^][*]+\\*[A-Za-z_][A-Za-z0-9_]*\\])( +(\\[resource [A-Za-z_][A-Za-z0-9_]*\\]|\\[resourcemap [^][*]+\\*[A-Za-z_][A-Za-z0-9_]*\\]))*$", var.ego_master.attributes))
    error_message = "ego_master.attributes is [resource NAME] or [resourcemap VALUE*NAME], or several of them."
  }
}

variable "instance" {
  description = "HostFactory's name of the provider instance: gcpgkeinst, gcpgceinst or one of your own."
  type        = string
  default     = "gcpinst"
}

variable "name_prefix" {
  description = "First part of the names of machines, groups, topic and subscription. Each deployment in a project needs a different one."
  type        = string
  default     = "hf"
}

variable "requestors" {
  description = "Requestors of HostFactory that may call this instance, with their mode. `enabled = true` also enables a requestor that Symphony ships disabled. `providers` is the whole list of instances that the requestor may call; by default this instance is added to its list."
  type = map(object({
    mode      = string
    enabled   = optional(bool)
    providers = optional(list(string))
  }))
  default = {
    symAinst = { mode = "POLL", enabled = true }
    admin    = { mode = "REST_MANUAL" }
  }

  validation {
    condition     = alltrue([for requestor in values(var.requestors) : contains(["POLL", "REST", "REST_MANUAL"], requestor.mode)])
    error_message = "mode of requestors is POLL, REST or REST_MANUAL."
  }
}

variable "pods" {
  description = "Pools of pods, by name: the namespace, and the largest number of pods. image, cpus and memory_mb make a pod spec, with more environment in env; or pod_spec is the text of your own pod spec. A node pool for pods has the label and the taint `hostfactory/machines=true`."
  type = map(object({
    namespace    = optional(string)
    image        = optional(string)
    env          = optional(map(string), {})
    cpus         = optional(number)
    memory_mb    = optional(number)
    spot         = optional(bool)
    pod_spec     = optional(string)
    max_machines = number
  }))
  default = {}

  validation {
    condition     = length(var.pods) == 0 || var.cluster_endpoint != null
    error_message = "pods need a cluster: `use` the cluster's module, or give cluster_endpoint and cluster_ca_certificate."
  }

  validation {
    condition     = alltrue([for pool in values(var.pods) : (pool.pod_spec != null) != (pool.image != null && pool.cpus != null && pool.memory_mb != null)])
    error_message = "pods have either pod_spec, or image, cpus and memory_mb."
  }

  validation {
    condition     = alltrue([for pool in values(var.pods) : pool.pod_spec == null || can(yamldecode(pool.pod_spec).spec)])
    error_message = "pod_spec of pods is YAML text of a pod with its spec, such as $(file(ghpc_stage(\"pod-spec.yaml\")))."
  }
}

variable "cluster_endpoint" {
  description = "Address or DNS name of the cluster's API server, from the output of the module gke-cluster."
  type        = string
  default     = null

  validation {
    condition     = var.cluster_endpoint == null || can(regex("^[A-Za-z0-9.-]+$", var.cluster_endpoint))
    error_message = "cluster_endpoint is an address or a name without https://, such as 203.0.113.7."
  }
}

variable "cluster_ca_certificate" {
  description = "Certificate authority of cluster_endpoint, base64 encoded, from the output of the module gke-cluster; not needed for a DNS name."
  type        = string
  default     = null

  validation {
    condition     = var.cluster_endpoint == null || endswith(coalesce(var.cluster_endpoint, "-"), ".gke.goog") || can(base64decode(var.cluster_ca_certificate))
    error_message = "cluster_ca_certificate, base64 encoded, goes with the address in cluster_endpoint."
  }
}

variable "groups" {
  description = "Managed instance groups, by the names of their pools: the zone, the group's name, and the largest number of instances. The module hostfactory-group makes a group."
  type = map(object({
    zone         = optional(string)
    name         = optional(string)
    max_machines = number
  }))
  default = {}

  validation {
    condition     = alltrue([for group in values(var.groups) : startswith(coalesce(group.zone, var.zone), "${var.region}-")])
    error_message = "zone of groups is a zone of ${var.region}, such as ${var.region}-a."
  }
}

variable "templates" {
  description = "HostFactory's templates, by id: the cores and memory of a machine, and the pools (of pods and groups) that can make it, in order of preference."
  type = map(object({
    pools      = list(string)
    ncpus      = number
    ncores     = optional(number)
    nram       = number
    max_number = number
  }))
}

variable "events" {
  description = "True to make a log sink, a topic and a subscription, which announce preemptions to the loop seconds earlier. They are made only if there are groups."
  type        = bool
  default     = false
}

variable "dry_run" {
  description = "True to show in the log of the master's start-up script the changes of HostFactory's files, without a change of any file and without starting the loop."
  type        = bool
  default     = false
}
