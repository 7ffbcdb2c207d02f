"""Demand without HostFactory. Sources say how many machines are wanted. Steps request and return machines by
HostFactory's scripts."""
