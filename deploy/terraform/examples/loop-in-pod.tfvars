# Pass this file after the variables of a grid if the loop runs as a pod of the cluster (docs/deploy-gke.md). The loop then logs in
# with the pod's account, and shares the state directory with HostFactory's host.
endpoint = null
share    = {}
