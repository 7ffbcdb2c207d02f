"""The promises of every backend (``provisioner.backends.Backend``), as tests with a fixture ``place``.

A kind's test module defines this fixture. The fixture yields an empty ``provisioner.testing.place.Place``. The module
imports all tests with ``from provisioner.testing.suite import *``.
"""

import pytest

MODULES = ("creates", "deletes", "lives", "observations", "others", "shared")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in MODULES))

from provisioner.testing.suite.creates import *  # noqa: E402
from provisioner.testing.suite.deletes import *  # noqa: E402
from provisioner.testing.suite.lives import *  # noqa: E402
from provisioner.testing.suite.observations import *  # noqa: E402
from provisioner.testing.suite.others import *  # noqa: E402
from provisioner.testing.suite.shared import impatient as impatient  # noqa: E402
