"""The promises of every backend (provisioner.testing.suite), in every place."""

from provisioner.testing.suite import *
