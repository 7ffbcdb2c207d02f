"""What is not the loop: the demonstration, a playground, the replay of a trace, files made for HostFactory."""
