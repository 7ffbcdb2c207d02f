"""Demand without HostFactory: sources, which say how many machines are wanted, and steps, which request and return
machines by HostFactory's scripts."""
