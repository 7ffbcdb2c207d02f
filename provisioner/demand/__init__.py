"""Demand without HostFactory: sources of the wanted machines, and the steps that request and return machines by
HostFactory's scripts."""
