"""``python -m tests.chaos.broken_loop BREAK run …``: the provisioner with a law that is broken on purpose.

BREAK is the name of a function in `tests/simulation/test_broken_laws.py` that breaks one law.
"""

from __future__ import annotations

import sys

from provisioner.__main__ import main
from tests.simulation import test_broken_laws

if __name__ == "__main__":
    with getattr(test_broken_laws, sys.argv.pop(1))():
        main()
