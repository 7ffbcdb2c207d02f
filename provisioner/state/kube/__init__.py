"""The state kept in a Kubernetes API, as custom resources of a namespace.

The definitions of these resources, with the rules that the server itself enforces, are in
``deploy/kustomize/components/kubernetes-state``.
"""
