# The secrets that the component secret-csi mounts. Each is made empty; you give its value to Google, never to Terraform.

resource "google_secret_manager_secret" "this" {
  for_each = toset(var.secrets)

  project   = var.project_id
  secret_id = each.value
  labels    = var.labels

  deletion_protection = var.deletion_protection

  replication {
    auto {}
  }

  depends_on = [google_project_service.this]
}

resource "google_secret_manager_secret_iam_member" "loop" {
  for_each = toset(var.secrets)

  project   = var.project_id
  secret_id = google_secret_manager_secret.this[each.value].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.loop.member
}
