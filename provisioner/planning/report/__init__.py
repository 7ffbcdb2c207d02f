"""Reports: answers to HostFactory, reasons for missing machines, and refusals."""
