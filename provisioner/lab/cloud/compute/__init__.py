"""The embedded Compute Engine: a model of managed instance groups and their VMs, and its HTTP API."""
