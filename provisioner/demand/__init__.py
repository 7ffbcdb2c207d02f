"""Demand without HostFactory. Sources say how many machines are wanted. A service requests and returns these machines
step by step, by HostFactory's scripts."""
