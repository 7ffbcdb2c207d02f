"""The commands of ``provisioner``: what each does, and what it says."""
