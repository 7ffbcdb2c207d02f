"""Tests of HF's activity: the hosts in its lists. If a list names the same hosts as before, the inventory stays the
same object."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.lab.virtual.state import VirtualState
from provisioner.loop.hf_activity import INVENTORY_SECONDS, LISTED_SECONDS, HfActivityReader
from provisioner.model import Intent

NO_REQUESTS = Intent("virtual", 0, {}, {})
NAMES = st.sampled_from([f"hf-{number}" for number in range(4)])
LISTS = st.lists(
    st.tuples(st.sampled_from((30.0, INVENTORY_SECONDS, LISTED_SECONDS)), st.frozensets(NAMES)), min_size=1
)


@settings(max_examples=40)
@given(LISTS)
def test_the_inventory_is_what_lists_named_within_minutes(lists: list[tuple[float, frozenset[str]]]) -> None:
    state, now = VirtualState(seed=1), 0.0
    reader, named = HfActivityReader(state), dict[str, float]()
    for seconds, names in lists:
        now += seconds
        named |= dict.fromkeys(names, now)
        state.note_hosts(dict.fromkeys(names))
        activity = reader.read(now, NO_REQUESTS)
        assert activity.inventory == {name for name, at in named.items() if now - at < INVENTORY_SECONDS}
        assert activity.listed_at == {name: at for name, at in named.items() if now - at < LISTED_SECONDS}


def test_a_list_of_the_same_hosts_leaves_the_very_same_inventory() -> None:
    state = VirtualState(seed=1)
    reader = HfActivityReader(state)
    state.note_hosts({"hf-1": None, "hf-2": None})
    before = reader.read(0.0, NO_REQUESTS)
    state.note_hosts({"hf-2": None, "hf-1": None})
    after = reader.read(30.0, NO_REQUESTS)
    assert after.inventory is before.inventory
    assert (after.last_list_at, set(after.listed_at.values())) == (30.0, {30.0})
