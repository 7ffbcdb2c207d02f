"""The state kept in a Kubernetes API, as custom resources of a namespace.

The kinds and the rules that the server itself keeps are in ``deploy/kustomize/components/kubernetes-state``.
"""
