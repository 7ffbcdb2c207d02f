"""Makers of HostFactory's files: they read one settings file, and render, register and place the files."""
