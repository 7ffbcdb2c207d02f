"""The commands of the laboratory. The module ``commands/cli.py`` loads them by name."""
