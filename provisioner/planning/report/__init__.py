"""Reports: answers to HostFactory, reasons why requests miss machines, refusals."""
