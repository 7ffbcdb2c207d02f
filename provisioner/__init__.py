"""HostFactory provisioner for Google Cloud: machines as GKE pods or managed instance group members."""

__version__ = "0.1.0"
"""The version. A bundle and an image add ``+g`` and the commit from which they were built."""
