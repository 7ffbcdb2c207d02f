"""What the provisioner is tried with: an embedded cloud, virtual time, demonstration and replay."""
