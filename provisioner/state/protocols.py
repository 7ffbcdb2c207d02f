"""Interfaces of the state: one for scripts, and one for loop and operators. Files or a Kubernetes API keep the state.
Only type checkers use the interfaces.

Any method may raise StateError, whose message names the problem and the next step. The caller may then repeat the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from provisioner.hostfactory import Answer, Loss, Polled, Recorded
from provisioner.hostfactory.provider_config import Digests
from provisioner.model import Holds, Intent, Memory
from provisioner.state.errors import Condition, StateMissing
from provisioner.state.journal import Excerpt
from provisioner.state.marker_files import Difference, LifeSigns
from provisioner.state.refused_calls import Refusals


class ScriptState(Protocol):
    """The state as HF's scripts use it. Scripts record requests, leave markers, and read what the loop has published.

    No method waits for the loop. Each method takes milliseconds (law: scripts answer from files).
    """

    def record_request(
        self, provisioner: str, template: str, count: int, *, created_wall: float, rc_account: str
    ) -> Recorded:
        """Record durably that HF asks for ``count`` machines (law: intent first).

        The first record makes the store for ``provisioner`` (HF's provider instance). The store of another instance is
        refused.
        """

    def record_return(self, provisioner: str, names: Iterable[str], *, created_wall: float) -> Recorded:
        """Record durably that HF returns the named machines (law: intent first). ``provisioner``: see
        ``record_request``."""

    def poll(self, ids: Iterable[str]) -> Polled:
        """Mark each known id as polled, then return its answer.

        A terminal answer is settled durably, so that every later call gets the same answer (law: a terminal answer
        stays).
        """

    def lost(self, machines: Iterable[str]) -> Mapping[str, Loss]:
        """Return the losses among ``machines``, except machines that HF has returned; empty before the loop has
        published losses."""

    def available(self) -> Mapping[str, int]:
        """Return how many further machines the caps allow, by template, as the loop last published."""

    def note_hosts(self, names: Mapping[str, object]) -> None:
        """Record the hosts that HF lists. The record is only a hint for the loop."""

    def note_shown(self, numbers: Mapping[str, int]) -> tuple[Mapping[str, int], str]:
        """Record and return the maxNumbers that HF is shown, by template id. If HF was shown a higher number before,
        that number stays.

        Also return a text that says where an operator finds the record.
        """

    def note_read(self, digests: Digests) -> None:
        """Record which content of HF's two files the scripts have read. The record is only a hint for operators. It may
        be written later, with the next request or the next maxNumbers."""

    def note_refusal(self, script: str, reason: str) -> None:
        """Record the reason why a script refuses its call; an empty reason if the script does not refuse the call. The
        record is only a hint for operators."""


class Part(Protocol):
    """A part of the state (intent or memory) whose loss never goes unnoticed."""

    def existed(self) -> bool:
        """Return True if the part exists or once existed."""

    def signature(self) -> object:
        """Return a value that changes with the part; None while the part is missing.

        The method must be cheap, because the loop calls the method ten times a second.
        """

    def condition(self) -> Condition:
        """Return the part's condition, after reading all of the part. ``Condition`` says what follows from each
        condition."""


class IntentPart(Part, Protocol):
    """The part with the requests and return requests of HF."""

    def read_newest(self) -> tuple[Intent, int]:
        """Return all of intent, and the newest generation ever written.

        If an old copy was put back, the newest generation is higher than the intent's own generation.
        """

    def note_newest(self, generation: int) -> None:
        """Record ``generation``, so that writers refuse an older intent from now on."""

    def remove(self, identifiers: Iterable[str]) -> float:
        """Remove the requests and the return requests with these ids. Skip ids that intent does not contain. Return the
        seconds spent waiting for other writers."""

    def read(self) -> Intent:
        """Return all of intent, even if it is an old copy."""


class MemoryPart(Part, Protocol):
    """The part with the records that the loop must not lose."""

    def read(self) -> Memory:
        """Return all of memory."""

    def write(self, memory: Memory) -> None:
        """Replace memory, durably on return (law: recorded before acted)."""

    def begin_life(self) -> int:
        """Begin a new range of generations because memory is made again. Return how often memory has been made again,
        including this time."""


class AnswersPart(Protocol):
    """The part with the answers that scripts print, rendered from memory."""

    def exists(self) -> bool:
        """Return True if the part exists, even if it is unreadable."""

    def signature(self) -> object:
        """Return a value that changes with the part; None while the part is missing."""

    def read_all(self) -> dict[str, Answer]:
        """Return every published answer."""

    def read_lost(self) -> Mapping[str, Loss]:
        """Return every published loss."""

    def write(self, answers: Mapping[str, Answer], lost: Mapping[str, Loss], available: Mapping[str, int]) -> None:
        """Publish answers, losses, and how many further machines the caps allow for each template."""


class TerminalAnswers(Protocol):
    """The terminal answers that were reported to HF (law: a terminal answer stays)."""

    def ids(self) -> frozenset[str]:
        """Return the ids of the requests whose answer was reported to HF or assumed to be reported."""

    def answers(self) -> dict[str, Answer]:
        """Return every settled answer."""

    def settled(self, id_: str) -> Answer | None:
        """Return the settled answer; None if no answer is settled or its text is unknown."""

    def settle_revised(self, id_: str, text: str) -> bool:
        """Settle the answer that replaces a published answer. Return False if HF has, or may have, the answer that was
        settled before."""


class HoldsPart(Protocol):
    """The holds of operators."""

    def signature(self) -> object:
        """Return a value that changes with the holds, like the signature of a ``Part``."""

    def read(self) -> Holds:
        """Return all holds; empty before the first hold was set."""

    def change(self, change: Callable[[Holds], Holds], *, replace_unusable: bool = False) -> tuple[Holds, Holds]:
        """Replace the holds durably, and return the holds before and after that. The function ``change`` gets the old
        holds and returns the new holds.

        ``replace_unusable``: True to replace unknown holds. The function gets no holds if this happens.
        """


class LoopTurn(Protocol):
    """The right to be the loop, which one process at a time has (law: one writer per file, one loop)."""

    def acquire(self, wait: float | None = None, stop: Callable[[], bool] = ...) -> bool:
        """Become the loop within ``wait`` seconds. If ``wait`` is None, stand by until ``stop()`` returns True. Return
        False if this process has not become the loop."""

    def keep(self) -> bool:
        """Confirm that this process is still the loop. Return False if another process has taken over. Raises
        StateError if this is unknown."""

    def holder(self) -> Mapping[str, object]:
        """Return ``epoch``, ``host``, ``pid`` and ``boot`` of the loop that signed last; empty if unknown.

        After that loop has signed off, the result also has ``ended``. While that loop waits for its predecessor, the
        result also has ``waits_until``.
        """

    def stopped_message(self) -> str:
        """Return the operator's next step if the holder is a stopped process (SIGSTOP) of this host; empty if not."""

    def has_calls(self) -> bool:
        """Return True if calls to a cloud may still be under way. These may be calls of the last holder, or of the loop
        for which the last holder waited."""

    def epoch(self) -> int:
        """Return the current epoch. A loop with another epoch was replaced by a newer loop."""

    def raise_epoch(self, at_least: int = 1, wait_seconds: float = 0.0) -> int:
        """Sign with a new epoch of at least ``at_least``, and return the epoch. The signature is durable on return.
        ``wait_seconds``: seconds until the new loop acts for the first time."""

    def end_wait(self) -> None:
        """Record that this loop no longer waits for the previous loop."""

    def sign_off(self) -> None:
        """Record that no call of this loop is under way any more."""

    def release(self) -> None:
        """Let the next loop take over. Safe to call twice."""

    def is_held(self) -> bool:
        """Return True if some process is the loop now, as far as this can be known."""


class State(Protocol):
    """The state as loop, telemetry and commands use it. The loop writes and trims the state; telemetry and commands
    read it."""

    @property
    def path(self) -> str:
        """Return where the state is kept, in words for operators."""

    @property
    def least_pause_seconds(self) -> float:
        """Return the minimum number of seconds between two cycles of a busy loop. This pause limits how often answers
        are written."""

    @property
    def intent(self) -> IntentPart: ...
    @property
    def memory(self) -> MemoryPart: ...
    @property
    def status(self) -> AnswersPart: ...
    @property
    def terminal_answers(self) -> TerminalAnswers: ...
    @property
    def loop_lock(self) -> LoopTurn: ...
    @property
    def holds(self) -> HoldsPart: ...

    def add_history(self, entries: Iterable[Mapping[str, object]]) -> None:
        """Add a line to the history for each entry. Decisions never depend on the history."""

    def find_history(self, *texts: str, newest: bool = False, most: int | None = None) -> Excerpt:
        """Return the lines of the history that contain one of ``texts``. With ``newest``, search only the newest file.
        ``most``: maximum number of lines from each file."""

    def write_pool_status(self, pool_status: Mapping[str, object]) -> None:
        """Replace the status of loop and pools that operators read."""

    def read_pool_status(self) -> dict[str, Any]:
        """Return the sections of the pool status by name; empty before a loop ran."""

    def write_demand(self, report: Mapping[str, object]) -> None:
        """Replace the report that operators read about the last step of ``provisioner demand``."""

    def read_demand(self) -> dict[str, Any]:
        """Return the report of the last step of ``provisioner demand``; empty before the first step."""

    def note_in_force(self, digests: Digests) -> None:
        """Record the digests of HF's two files (provider config, templates) that the loop uses from now on."""

    def config_differences(self) -> list[Difference]:
        """Return each of HF's two files (provider config, templates) that scripts and loop have read with different
        contents."""

    def beat(self) -> None:
        """Record that the loop is alive."""

    def life_signs(self) -> LifeSigns:
        """Return the loop's signs of life, by the state's own clock."""

    def polls(self) -> dict[str, int]:
        """Return the time of HF's last poll of each request, in ns by the state's own clock."""

    def listed_hosts(self) -> tuple[tuple[str, ...], int] | None:
        """Return the hosts in HF's latest list, and the time of that list in ns, which differs after each list; None
        before HF's first list."""

    def refused_calls(self) -> list[Refusals]:
        """Return the calls that scripts have refused because of a local problem, by script."""

    def forget_polls(self, ids: Iterable[str]) -> None:
        """Remove polls and terminal answers of requests that have left the state."""

    def seconds_since_intent(self) -> float:
        """Return the seconds from intent's last write to the loop's last sign of life; 0 if unknown."""

    def release_asked(self) -> bool:
        """Return True if an operator has asked the loop to release the brake."""

    def take_release(self) -> bool:
        """Return True if an operator has asked the loop to release the brake. Intent that is read after this call has
        all records that the operator wrote before asking."""

    def forget_release(self) -> None:
        """Durably forget the release of the brake that ``take_release`` reported last. A release for which an operator
        asked later stays."""

    def sizes(self) -> Mapping[str, int]:
        """Return the bytes of each part that grows with use, by its name."""

    def find_write_error(self) -> OSError | None:
        """Return the error that prevents writing now; None if writing is possible."""


def read_memory(state: State) -> Memory | None:
    """Return the memory; None if there is no memory."""
    try:
        return state.memory.read()
    except StateMissing:
        return None
