module "settings" {
  source = "./modules/settings"

  project_id     = var.project_id
  provider_name  = var.provider_name
  name_prefix    = var.name_prefix
  autopilot      = local.autopilot
  endpoint       = local.address == null ? null : "https://${local.address}"
  ca_certificate = local.ca_certificate
  kubeconfig     = var.kubeconfig
  credentials    = var.credentials
  pods           = var.pods
  groups         = var.groups
  templates      = var.templates
  subscription   = local.has_events ? local.events_name : null
}
