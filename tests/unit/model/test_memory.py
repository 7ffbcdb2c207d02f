"""A changed slot is what a named tuple's own ``_replace`` makes of it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import Slot, Verdict, evolve

SLOT = Slot("hf-0123456789-000001", 1, "pool", Verdict.OPEN, 1.0)

changes = st.dictionaries(st.sampled_from(Slot._fields), st.integers(), min_size=1)


@given(changes)
def test_a_change_is_made_as_a_named_tuple_makes_it(changed: dict[str, Any]) -> None:
    made = evolve(SLOT, **changed)
    assert made == SLOT._replace(**changed)
    assert type(made) is Slot
