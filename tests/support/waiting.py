"""Waiting for a condition in tests. The suite for kinds of places uses the same code."""

from provisioner.testing.waiting import PATIENCE as PATIENCE
from provisioner.testing.waiting import until as until
