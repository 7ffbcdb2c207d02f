"""What is not counted anew while nothing has changed: HF's hosts as the loop and virtual time know them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from provisioner.loop.contact import LISTED_FOR, ONE_LIST, Contacts
from provisioner.model import Intent, PoolLimits
from provisioner.simulator.world import World
from provisioner.virtual.ledger import Ledger
from provisioner.virtual.place import Member
from provisioner.virtual.state import VirtualState

NOBODY_ASKS = Intent("virtual", 0, {}, {})
NAMES = st.sampled_from([f"hf-{number}" for number in range(4)])
LISTS = st.lists(st.tuples(st.sampled_from((30.0, ONE_LIST, LISTED_FOR)), st.frozensets(NAMES)), min_size=1)
STEPS = st.lists(st.tuples(st.sampled_from(("made", "ran", "ended", "used")), st.frozensets(NAMES, min_size=1)))


@given(LISTS)
def test_the_inventory_is_what_lists_named_within_minutes(lists: list[tuple[float, frozenset[str]]]) -> None:
    state, now = VirtualState(seed=1), 0.0
    contacts, named = Contacts(state), dict[str, float]()
    for seconds, names in lists:
        now += seconds
        named |= dict.fromkeys(names, now)
        state.note_hosts(dict.fromkeys(names))
        contact = contacts.read(now, NOBODY_ASKS)
        assert contact.inventory == {name for name, at in named.items() if now - at < ONE_LIST}
        assert contact.listed == {name: at for name, at in named.items() if now - at < LISTED_FOR}


def test_a_list_of_the_same_hosts_leaves_the_very_same_inventory() -> None:
    state = VirtualState(seed=1)
    contacts = Contacts(state)
    state.note_hosts({"hf-1": None, "hf-2": None})
    before = contacts.read(0.0, NOBODY_ASKS)
    state.note_hosts({"hf-2": None, "hf-1": None})
    after = contacts.read(30.0, NOBODY_ASKS)
    assert after.inventory is before.inventory
    assert (after.lists, set(after.listed.values())) == (30.0, {30.0})


@given(STEPS)
def test_usable_are_those_that_run_and_are_used(steps: list[tuple[str, frozenset[str]]]) -> None:
    ledger = Ledger(World(), {"a": PoolLimits("a")}, {"a": 1.0}, orphan_grace=600.0)
    members = {}
    for step, names in steps:
        for name in names if step != "used" else ():
            member = members.setdefault(name, Member(name, "T", "1", 0.0))
            if step == "ran":
                member.ran = 0.0
            {"made": ledger.created, "ran": ledger.ran, "ended": ledger.ended}[step]("a", member)
        if step == "used":
            ledger.use(names)
        assert ledger.usable() == len(ledger.running.intersection(ledger.hosts))
