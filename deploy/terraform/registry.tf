# The registry to which you push the image of the pods, and from which the nodes pull it. Destroying it deletes its images.

locals {
  registry = "${var.region}-docker.pkg.dev/${var.project_id}/${var.name_prefix}"
}

resource "google_artifact_registry_repository" "images" {
  count = local.has_cluster ? 1 : 0

  project       = var.project_id
  location      = var.region
  repository_id = var.name_prefix
  format        = "DOCKER"
  description   = "Images of HostFactory's machines"
  labels        = var.labels

  depends_on = [google_project_service.this]
}
