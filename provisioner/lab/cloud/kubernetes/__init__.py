"""The embedded Kubernetes cluster: a model of pods and nodes, and its API server over HTTP."""
