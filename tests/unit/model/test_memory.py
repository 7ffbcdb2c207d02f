"""A changed slot is what a named tuple's own ``_replace`` makes of it, however it was changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import Slot, Verdict, evolve, evolving

SLOT = Slot("hf-0123456789-000001", 1, "pool", Verdict.OPEN, 1.0)

changes = st.dictionaries(st.sampled_from(Slot._fields), st.integers(), min_size=1)


@given(changes)
def test_a_change_is_made_as_a_named_tuple_makes_it(changed: dict[str, Any]) -> None:
    expected = SLOT._replace(**changed)
    made = [evolve(SLOT, **changed), evolving(*changed)(SLOT, **changed)]
    assert made == [expected, expected]
    assert {type(slot) for slot in made} == {Slot}


def test_a_change_of_always_the_same_fields_is_of_them_all() -> None:
    with pytest.raises(TypeError, match="public_ip"):
        evolving("ip", "public_ip")(SLOT, ip="10.0.0.1")
