"""Makers of HostFactory's files: read one settings file, render, register and place the files."""
