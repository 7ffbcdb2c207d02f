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
  description = "Project in which template and group are made."
  type        = string
}

variable "region" {
  description = "Region of the template."
  type        = string
}

variable "zone" {
  description = "Zone of the group."
  type        = string
}

variable "labels" {
  description = "Labels of the instances. Key-value pairs."
  type        = map(string)
}

variable "name" {
  description = "Name of the group, from the output group_names of the module hostfactory-provisioner."
  type        = string

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,52}[a-z0-9])?$", var.name))
    error_message = "name has at most 54 lower-case letters, digits or '-', begins with a letter and does not end in '-'."
  }
}

variable "machine_type" {
  description = "Machine type of the instances."
  type        = string
  default     = "c2-standard-4"
}

variable "instance_image" {
  description = "Boot image with Symphony's compute host: its project, and its family or name."
  type        = map(string)

  validation {
    condition     = can(coalesce(var.instance_image.project)) && can(coalesce(var.instance_image.name)) != can(coalesce(var.instance_image.family))
    error_message = "instance_image has a project, and either a family or a name."
  }
}

variable "disk_size_gb" {
  description = "Size of the boot disk in GB; if null, the size of the image."
  type        = number
  default     = null
}

variable "disk_type" {
  description = "Type of the boot disk."
  type        = string
  default     = "pd-balanced"
}

variable "subnetwork_self_link" {
  description = "Subnetwork of the instances, which get no public address."
  type        = string
}

variable "spot" {
  description = "True if the instances are Spot VMs."
  type        = bool
  default     = false
}

variable "service_account_email" {
  description = "Service account of the instances."
  type        = string
}

variable "service_account_scopes" {
  description = "Scopes of that account on the instances."
  type        = set(string)
  default     = ["https://www.googleapis.com/auth/cloud-platform"]
}

variable "startup_script" {
  description = "Start-up script of the instances, from the module startup-script with machine_runners of the module hostfactory-provisioner."
  type        = string
}

variable "metadata" {
  description = "Metadata of the instances: machine_metadata of the module hostfactory-provisioner, merged with your own if you have any."
  type        = map(string)

  validation {
    condition     = contains(keys(var.metadata), "hf-ego-master")
    error_message = "metadata has hf-ego-master, without which no instance joins: give it machine_metadata of the module hostfactory-provisioner."
  }
}
