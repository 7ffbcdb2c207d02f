"""Regular files opened safely, file owners, and YAML files that operators write."""
