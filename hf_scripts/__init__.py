"""The five HostFactory scripts. Each script reads a JSON document and the state files, and prints a JSON document."""
