"""Attacks on the loop's server, and hostile input from clouds, files and HostFactory. The loop must survive each attack
and each input with limited time and memory, and must report it in a sentence."""
