"""The five HostFactory scripts: JSON in, state files, JSON out."""
