"""HostFactory provisioner for Google Cloud: machines as GKE pods or managed instance group members."""

__version__ = "0.1.0"
