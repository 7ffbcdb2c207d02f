# A grid with all kinds of pools, whose loop is a service of HostFactory's host: pods, a zonal group and a regional group of
# Spot instances; each template asks its Spot pool first. Copy this file, and change project, region, zones, images, sizes,
# master1.bank.example (EGO's management host), and the addresses of Symphony's hosts and of the hosts that reach the cluster
# (HostFactory's host, and hosts with kubectl). Paths are relative to the folder above, where Terraform runs. The folder grid
# beside it has the files of HostFactory that it makes. If the loop is a pod, pass loop-in-pod.tfvars after it.
project_id      = "my-grid-project"
region          = "us-central1"
zones           = ["us-central1-a", "us-central1-b"]
symphony_ranges = ["10.0.0.0/16"]

cluster = {
  authorized_ranges = ["198.51.100.0/28"]
  node_pools = {
    workers      = { machine_type = "n2-standard-8", max_nodes = 50 }
    workers-spot = { machine_type = "n2-standard-8", max_nodes = 250, spot = true }
  }
}

pods = {
  pods = {
    image        = "us-central1-docker.pkg.dev/my-grid-project/hf/worker:1"
    env          = { HF_EGO_MASTER = "master1.bank.example" }
    cpus         = 3.5
    memory_mb    = 12288
    max_machines = 100
  }
  pods-spot = {
    image        = "us-central1-docker.pkg.dev/my-grid-project/hf/worker:1"
    env          = { HF_EGO_MASTER = "master1.bank.example" }
    cpus         = 3.5
    memory_mb    = 12288
    max_machines = 500
    spot         = true
  }
}

groups = {
  a = {
    zone         = "us-central1-a"
    machine_type = "n2-standard-8"
    image        = "projects/my-grid-project/global/images/family/symphony-compute"
    metadata     = { hf-ego-master = "master1.bank.example" }
    metadata_from_file = {
      startup-script  = "../machine/startup.sh"
      shutdown-script = "../machine/shutdown.sh"
      hf-machine-lib  = "../machine/lib.sh"
    }
    max_machines = 500
  }
  any = {
    region       = "us-central1"
    machine_type = "n2-standard-8"
    image        = "projects/my-grid-project/global/images/family/symphony-compute"
    metadata     = { hf-ego-master = "master1.bank.example" }
    metadata_from_file = {
      startup-script  = "../machine/startup.sh"
      shutdown-script = "../machine/shutdown.sh"
      hf-machine-lib  = "../machine/lib.sh"
    }
    max_machines = 2000
    spot         = true
  }
}

templates = {
  Small = { pools = ["pods-spot", "pods"], ncpus = 3, nram = 12288, max_number = 600 }
  Large = { pools = ["any", "a"], ncpus = 8, nram = 32768, max_number = 2500 }
}
