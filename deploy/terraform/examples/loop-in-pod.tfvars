# After the variables of a grid, where the loop is a pod of the cluster (docs/deploy-gke.md): it has the account of its pod,
# and shares the state directory with HostFactory's host.
endpoint = null
share    = {}
