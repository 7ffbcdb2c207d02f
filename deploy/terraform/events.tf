# Compute's audit log entries as hints for the loop, which works without them: docs/deploy-google.md.

locals {
  events_name = "${var.name_prefix}-events"
}

resource "google_pubsub_topic" "events" {
  count = local.has_events ? 1 : 0

  project = var.project_id
  name    = local.events_name
  labels  = var.labels

  depends_on = [google_project_service.this]
}

resource "google_logging_project_sink" "events" {
  count = local.has_events ? 1 : 0

  project                = var.project_id
  name                   = local.events_name
  destination            = "pubsub.googleapis.com/${google_pubsub_topic.events[0].id}"
  unique_writer_identity = true
  filter = templatefile("${path.module}/sink-filter.txt", {
    project     = var.project_id
    name_prefix = var.name_prefix
  })
}

resource "google_pubsub_topic_iam_member" "sink" {
  count = local.has_events ? 1 : 0

  project = var.project_id
  topic   = google_pubsub_topic.events[0].name
  role    = "roles/pubsub.publisher"
  member  = google_logging_project_sink.events[0].writer_identity
}

resource "google_pubsub_subscription" "events" {
  count = local.has_events ? 1 : 0

  project                    = var.project_id
  name                       = local.events_name
  topic                      = google_pubsub_topic.events[0].id
  labels                     = var.labels
  ack_deadline_seconds       = 10
  message_retention_duration = "600s" # an older hint is useless

  expiration_policy {
    ttl = "" # never expires, even if it has not been read for a month
  }
}

resource "google_project_iam_custom_role" "events" {
  count = local.has_events ? 1 : 0

  project     = var.project_id
  role_id     = "${replace(var.name_prefix, "-", "_")}_provisioner_events"
  title       = local.events_role.title
  description = local.events_role.description
  stage       = local.events_role.stage
  permissions = local.events_role.includedPermissions

  depends_on = [google_project_service.this]
}

resource "google_pubsub_subscription_iam_member" "loop" {
  count = local.has_events ? 1 : 0

  project      = var.project_id
  subscription = google_pubsub_subscription.events[0].name
  role         = google_project_iam_custom_role.events[0].id
  member       = google_service_account.loop.member
}
