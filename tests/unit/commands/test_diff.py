"""`provisioner diff`: views of HostFactory's list, memory and clouds, and the meaning of each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.commands.diff import SHOWN, diff_document, diff_lines
from provisioner.model import Observation, Phase, Slot, Verdict
from tests.unit.core import PREFIX, failed_observation, machine, memory, name, record, running, slot, snapshot

NAME = name(0)
FULL = f"{NAME.upper()}.c.project.internal"
THERE, NOWHERE = snapshot(machine(0)), snapshot()
GONE = {"is_gone": True}


@pytest.mark.parametrize(
    ("listed", "one", "observation", "means", "differs"),
    [
        pytest.param(True, running(0, Verdict.SUCCEEDED), THERE, "all three agree", False, id="as it should be"),
        pytest.param(False, running(0, Verdict.SUCCEEDED), THERE, "not list the machine", True, id="HF has lost sight"),
        pytest.param(True, running(0, Verdict.SUCCEEDED), NOWHERE, "the machine vanished", True, id="vanished"),
        pytest.param(True, running(0, Verdict.SUCCEEDED), snapshot(machine(0, is_strayed=True)), "without our labels",
                     True, id="it has strayed"),
        pytest.param(True, running(0, Verdict.SUCCEEDED), snapshot(machine(0, Phase.PENDING)), "does not run any more",
                     True, id="it runs no more"),
        pytest.param(True, running(0, Verdict.SUCCEEDED), failed_observation(), "unknown, because", True,
                     id="pool unseen"),
        pytest.param(False, slot(), NOWHERE, "on its way", False, id="not made yet"),
        pytest.param(False, running(), THERE, "on its way", False, id="runs, and is not reported yet"),
        pytest.param(True, running(), THERE, "before the machine's", True, id="HF knows too early"),
        pytest.param(True, slot(), NOWHERE, "before the machine's", True, id="HF knows one too early that is not made"),
        pytest.param(True, running(0, Verdict.LOST, **GONE), NOWHERE, "asked to return it", True, id="lost"),
        pytest.param(False, running(0, Verdict.RETURNED), THERE, "being deleted", False, id="being deleted"),
        pytest.param(True, running(0, Verdict.RETURNED, **GONE), NOWHERE, "still lists", True, id="closed, listed"),
        pytest.param(True, running(0, Verdict.RETURNED, **GONE), failed_observation(), "still lists", True,
                     id="gone for good"),
        pytest.param(False, running(0, Verdict.RETURNED), NOWHERE, "ended and gone", False, id="over"),
        pytest.param(False, None, THERE, "an orphan", True, id="orphan"),
        pytest.param(True, None, THERE, "it stays because", True, id="HF has it and we forgot"),
        pytest.param(True, None, NOWHERE, "neither memory nor cloud has the machine", True, id="in HF alone"),
        pytest.param(True, None, failed_observation(), "unknown, because", True, id="ours by name, a pool unseen"),
        pytest.param(None, running(0, Verdict.SUCCEEDED), THERE, "sent no list yet", False, id="listed before a list"),
        pytest.param(None, running(0, Verdict.SUCCEEDED), NOWHERE, "machine vanished", True, id="gone before a list"),
        pytest.param(None, None, THERE, "an orphan", True, id="an orphan before a list"),
        pytest.param(None, running(), THERE, "on its way", False, id="on its way before a list"),
    ],
)  # fmt: skip
def test_a_view_of_a_machine_says_what_it_means(
    listed: bool | None, one: Slot | None, observation: Observation, means: str, differs: bool
) -> None:
    """`provisioner diff` must report the meaning of each combination of HostFactory's list, memory and cloud.
    ``listed``: True if HostFactory's list names the machine; None if HostFactory has sent no list yet."""
    names = None if listed is None else [FULL] * listed
    document = diff_document(memory(*[record(one)] if one else []), names, {"a": observation}, PREFIX)
    [group] = document["groups"]
    assert (means in group["meaning"], group["differs"], group["machines"]) == (True, differs, [NAME])


@pytest.mark.parametrize("account", ["operator", "slurm"])
def test_a_machine_that_another_caller_requested_is_no_difference(account: str) -> None:
    """The lists of `provisioner demand` never name the machines of `provisioner request` and of Slurm's nodes."""
    requested = record(running(0, Verdict.SUCCEEDED), rc_account=account)
    [group] = diff_document(memory(requested), [], {"a": THERE}, PREFIX)["groups"]
    assert ("or did not request it" in group["meaning"], group["differs"], group["machines"]) == (True, False, [NAME])


def test_a_host_of_another_provider_is_no_difference() -> None:
    [group] = diff_document(memory(), ["login-1"], {"a": failed_observation()}, PREFIX)["groups"]
    assert (group["meaning"], group["differs"]) == ("the name is not one of ours", False)


def test_the_text_names_what_differs_first_and_not_every_machine() -> None:
    slots = [running(number, Verdict.SUCCEEDED) for number in range(SHOWN + 7)]
    document = diff_document(
        memory(record(*slots)),
        [NAME, name(1)],
        {"a": snapshot(machine(0), machine(1)), "b": failed_observation("b")},
        PREFIX,
    )
    lines = [*diff_lines(document | {"listed_at": 1.0})]
    assert lines == [
        "Machines: HostFactory lists 2, memory has 17, the clouds have 2.",
        "  pool b: UNSEEN, no route to host",
        "     15  HostFactory: not listed; memory: succeeded; cloud: absent. Meaning: the machine vanished; reported "
        "to HostFactory if a second observation lacks it too",
        *(f"         {name(number)}" for number in range(2, 2 + SHOWN)),
        "         and 5 more: --machines names them",
        "      2  HostFactory: listed; memory: succeeded; cloud: running. Meaning: all three agree",
    ]
    everything = "\n".join(diff_lines(document | {"listed_at": None}, every=True))
    assert everything.count("hf-") == SHOWN + 7
    assert everything.startswith("Machines: HostFactory has sent no list yet, memory has ")


@given(
    st.sets(st.integers(0, 9)),
    st.dictionaries(st.integers(0, 9), st.tuples(st.sampled_from(Verdict), st.booleans())),
    st.sets(st.integers(0, 9)),
)
def test_every_machine_of_the_three_stands_in_one_group(
    listed: set[int], slots: dict[int, tuple[Verdict, bool]], seen: set[int]
) -> None:
    known = [running(number, verdict, is_gone=gone) for number, (verdict, gone) in slots.items()]
    observations = {"a": snapshot(*map(machine, seen))}
    document: dict[str, Any] = diff_document(memory(record(*known)), names(listed), observations, PREFIX)
    grouped = [one for group in document["groups"] for one in group["machines"]]
    living = {number for number, (_, gone) in slots.items() if not gone}
    assert sorted(grouped) == names(listed | living | seen)
    assert (document["hostfactory"], document["memory"], document["clouds"]) == (len(listed), len(living), len(seen))


def names(numbers: set[int]) -> list[str]:
    return [name(number) for number in sorted(numbers)]
