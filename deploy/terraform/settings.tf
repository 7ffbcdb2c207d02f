module "settings" {
  source = "./modules/settings"

  project_id    = var.project_id
  provider_name = var.provider_name
  name_prefix   = var.name_prefix
  autopilot     = local.autopilot
  kubeconfig    = var.kubeconfig
  pods          = var.pods
  groups        = var.groups
  templates     = var.templates
  subscription  = local.has_events ? local.events_name : null
}
