"""The simulated Compute Engine with every behaviour that nobody documents at its hardest, and with each flipped alone.

A fixture with ``EACH`` as its parameters runs a test with the hardest in `make test`, with the others in
`make test-slow`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.simulator.compute_settings import Duplicate, Switches

PESSIMISTIC = Switches()

FLIPPED = {
    "a taken name is a conflict": replace(PESSIMISTIC, duplicate_name=Duplicate.HTTP_CONFLICT),
    "a taken name is skipped": replace(PESSIMISTIC, duplicate_name=Duplicate.IGNORE),
    "a delete cancels an insert": replace(PESSIMISTIC, cancel_creating=True),
    "a dead member leaves": replace(PESSIMISTIC, dead_member_stays=False),
    "a recreated VM has another id": replace(PESSIMISTIC, recreate_keeps_id=False),
    "the header masks fields": replace(PESSIMISTIC, field_mask_header=True),
    "the address comes early": replace(PESSIMISTIC, ip_before_running=True),
    "request ids are kept for a day": replace(PESSIMISTIC, request_id_seconds=86400.0),
}

EACH = [
    pytest.param(PESSIMISTIC, id="hardest"),
    *(pytest.param(switches, id=name, marks=pytest.mark.slow) for name, switches in FLIPPED.items()),
]
