"""The commands of the laboratory; ``commands/cli.py`` loads them by name."""
