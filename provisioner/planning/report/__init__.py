"""What is reported: answers to HostFactory, why requests miss machines, refusals."""
