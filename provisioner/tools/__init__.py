"""Programs that render, register and place HostFactory's files, from one settings file."""
