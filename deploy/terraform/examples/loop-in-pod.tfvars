# To pass after the variables of a grid if the loop is a pod of the cluster (docs/deploy-gke.md). The loop then has the account
# of its pod, and shares the state directory with HostFactory's host.
endpoint = null
share    = {}
