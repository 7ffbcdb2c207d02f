# terraform test: existing resources stay if something is added later. No account, no network.

mock_provider "google" {}

variables {
  project_id = "grid-project"
  region     = "us-central1"
  zones      = ["us-central1-a"]
  cluster    = null
  groups = {
    zonal = { zone = "us-central1-a", machine_type = "n2-standard-8", image = "projects/p/global/images/i", max_machines = 500 }
  }
  templates = {
    Small = { pools = ["zonal"], ncpus = 4, nram = 8192, max_number = 500 }
  }
}

run "a_grid_without_a_share" {
  command = apply
}

run "google_s_agent_keeps_its_rights_when_an_api_comes_later" {
  command = plan

  variables {
    share = {}
  }

  assert {
    condition     = endswith(google_project_iam_member.agent[0].member, "@cloudservices.gserviceaccount.com")
    error_message = "Its member is known beforehand, and so no right is taken away and given again."
  }
}
