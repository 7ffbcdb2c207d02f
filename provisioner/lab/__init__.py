"""The laboratory of the provisioner: an embedded cloud, virtual time, demonstration and replay."""
