"""The kind ``command``: machines of any scheduler that has commands to create, list and delete its jobs."""
