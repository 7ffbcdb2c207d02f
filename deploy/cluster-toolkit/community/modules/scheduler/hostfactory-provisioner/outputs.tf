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

output "packer_runners" {
  description = "Runners that install the provisioner in the image of the master, after the runners that install Symphony."
  value = [{
    type        = "shell"
    destination = "hostfactory-install.sh"
    content     = file("${path.module}/files/install.sh")
    args        = join(" ", [var.bundle.uri, var.bundle.sha256, var.ego_user, var.python_package])
  }]
}

output "master_runners" {
  description = "Runners that register the instance at HostFactory and start the loop, on the master, after HostFactory's own configuration and before EGO starts."
  value = concat(
    [for name, text in merge(local.files, { "settings.yml" = local.settings }) : {
      type        = "data"
      destination = "${local.directory}/${name}"
      content     = text
    }],
    [{
      type        = "shell"
      destination = "hostfactory-configure.sh"
      content     = file("${path.module}/files/configure.sh")
      args        = join(" ", ["${local.directory}/settings.yml", var.symphony_install_dir, var.instance, var.ego_user, var.dry_run ? "dry-run" : "run"])
    }],
  )
}

output "machine_runners" {
  description = "Runners by which an instance of a group joins EGO."
  value = [
    {
      type        = "data"
      destination = "${local.directory}/hostfactory-lib.sh"
      content     = "HF_EGO_PROFILE='${local.ego_profile}'\n${file("${path.module}/files/lib.sh")}"
    },
    {
      type        = "shell"
      destination = "hostfactory-startup.sh"
      content     = file("${path.module}/files/startup.sh")
      args        = "${local.directory}/hostfactory-lib.sh"
    },
  ]
}

output "machine_metadata" {
  description = "Metadata of a group's instances: the settings that machine_runners read, and the script by which an instance leaves EGO."
  value = merge(
    { for name, value in local.ego_environment : replace(lower(name), "_", "-") => value },
    { shutdown-script = file("${path.module}/files/shutdown.sh") },
  )
}

output "group_names" {
  description = "Names of the managed instance groups, by their pools."
  value       = module.settings.group_names
}

output "apply_manifests" {
  description = "Manifests for the module kubectl-apply: the namespaces of the pods, and the loop's rights in each."
  value = [for namespace in local.namespaces : {
    name = "hostfactory-${namespace}"
    content = join("---\n", [
      yamlencode({ apiVersion = "v1", kind = "Namespace", metadata = { name = namespace, labels = {
        "pod-security.kubernetes.io/enforce" = "baseline", "pod-security.kubernetes.io/warn" = "restricted"
      } } }),
      yamlencode(merge(local.rbac.Role, { metadata = merge(local.rbac.Role.metadata, { namespace = namespace }) })),
      yamlencode(merge(local.rbac.RoleBinding, {
        metadata = merge(local.rbac.RoleBinding.metadata, { namespace = namespace })
        subjects = [{ apiGroup = "rbac.authorization.k8s.io", kind = "User", name = var.service_account_email }]
      })),
    ])
  }]
}

output "instructions" {
  description = "Commands that return all machines, to run before the deployment is destroyed."
  value       = <<-EOT
    Before `gcluster destroy`, give all machines back. On the master, as ${var.ego_user}, with
    HF_PROVIDER_CONFDIR=/etc/hostfactory and HF_PROVIDER_WORKDIR=/var/lib/hostfactory:
    %{for name in keys(local.pools)~}
      /opt/provisioner/bin/provisioner drain ${name} --reason destroy
    %{endfor~}
      /opt/provisioner/bin/provisioner status   # until it shows no machine
    Then, as root: systemctl disable --now provisioner
  EOT
}
