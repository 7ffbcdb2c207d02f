"""The waiting of all tests, which the suite for kinds of places uses too."""

from provisioner.testing.waiting import PATIENCE as PATIENCE
from provisioner.testing.waiting import until as until
