"""The embedded cloud: a model of a cloud with its own clock, random seed and faults.

The official clients can call its HTTP APIs.
"""
