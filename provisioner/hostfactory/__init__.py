"""What HostFactory's own files, calls and environment look like."""
