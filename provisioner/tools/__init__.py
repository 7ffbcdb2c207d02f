"""Programs beside the loop: the demonstration on a playground, the replay of a trace, HostFactory's files."""
