"""The embedded Kubernetes cluster: a model of pods and nodes, and the API server's face."""
