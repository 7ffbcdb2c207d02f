"""What scripts, loop and operators need of the state, however it is kept: two interfaces, for type checkers alone.

Any method may raise StateError; its message names what is wrong and the next step, and the call may be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from provisioner.hostfactory import Answer, Loss, Polled, Recorded
from provisioner.hostfactory.instance import Digests
from provisioner.model import Intent, Levers, Memory
from provisioner.state.errors import Condition
from provisioner.state.journal import Excerpt
from provisioner.state.markers import Difference, LifeSigns


class ScriptState(Protocol):
    """What HF's scripts do with the state: they record, leave marks and read what the loop has published.

    No method waits for the loop, and each takes milliseconds (law: scripts answer from files).
    """

    def record_request(
        self, provisioner: str, template: str, count: int, *, created_wall: float, rc_account: str
    ) -> Recorded:
        """HF asks for ``count`` machines, durably on return (law: intent first).

        The first record makes the store for ``provisioner``, HF's instance; another's store is refused.
        """

    def record_return(self, provisioner: str, names: Iterable[str], *, created_wall: float) -> Recorded:
        """HF gives the named machines back. As ``record_request``."""

    def poll(self, ids: Iterable[str]) -> Polled:
        """Marks each id that is known as polled, then reads what HF is told of it.

        An answer that has ended is settled durably: every later call gets the same (law: a terminal answer stays).
        """

    def lost(self, machines: Iterable[str]) -> Mapping[str, Loss]:
        """Which of these machines are lost and were not given back; none before the loop has published any."""

    def available(self) -> Mapping[str, int]:
        """How many more machines the caps leave to each template, as far as the loop has published it."""

    def note_hosts(self, names: Mapping[str, object]) -> None:
        """HF lists these hosts. Only a hint for the loop."""

    def note_shown(self, numbers: Mapping[str, int]) -> tuple[Mapping[str, int], str]:
        """HF is shown these maxNumbers by template id, or the higher ones it was shown before.

        Returns what it is shown, and where a person finds what it was shown before.
        """

    def note_read(self, digests: Digests) -> None:
        """The scripts have read HF's two files with this content. Only a hint for people."""


class Part(Protocol):
    """A part of the state that is written as a whole: intent, memory, published answers."""

    def exists(self) -> bool:
        """True when it is there, whether or not it can be read."""

    def existed(self) -> bool:
        """True when it is there or was there once."""

    def signature(self) -> object:
        """Differs whenever the part does; None while it is missing. Cheap: it is asked for ten times a second."""

    def condition(self) -> Condition:
        """Whether it may be relied on; what is done where it may not stands in errors.py. Reads all of it."""


class IntentPart(Part, Protocol):
    """What HF wants."""

    def read_newest(self) -> tuple[Intent, int]:
        """All of it, and the newest generation ever written: more than its own when an old copy was put back."""

    def note_newest(self, generation: int) -> None:
        """From now on writers refuse an older intent than this generation."""

    def remove(self, identifiers: Iterable[str]) -> float:
        """Trims requests and returns, known or not; the seconds it waited for other writers."""

    def read(self) -> Intent:
        """All of it, also an old copy."""


class MemoryPart(Part, Protocol):
    """What the loop must not forget."""

    def read(self) -> Memory:
        """All of it."""

    def write(self, memory: Memory) -> None:
        """Replaces it, durably on return (law: recorded before acted)."""

    def begin_life(self) -> int:
        """It is made again: generations go on in a range of their own. Returns how often that has been."""


class AnswersPart(Part, Protocol):
    """What scripts print: a rendering of memory and intent."""

    def read_all(self) -> dict[str, Answer]:
        """Every published answer."""

    def read_lost(self) -> Mapping[str, Loss]:
        """Every published loss."""

    def write(self, answers: Mapping[str, Answer], lost: Mapping[str, Loss], available: Mapping[str, int]) -> None:
        """Publishes answers, lost hosts, and what the caps leave to each template, all at once."""


class TerminalAnswers(Protocol):
    """What HF was told for good (law: a terminal answer stays)."""

    def ids(self) -> frozenset[str]:
        """Requests that HF was told of, or counts as told."""

    def answers(self) -> dict[str, Answer]:
        """Every settled answer."""

    def settled(self, id_: str) -> Answer | None:
        """The answer that stays; None while it may still be another."""

    def claim(self, id_: str, text: str) -> bool:
        """Settles what will be said in place of a published answer; False when HF was told, or may have been."""


class LoopTurn(Protocol):
    """One loop at a time (law: one writer per file, one loop)."""

    def acquire(self, wait: float | None = None, stop: Callable[[], bool] = ...) -> bool:
        """Become the loop within ``wait`` seconds (None: stand by until ``stop()``); False while another loop is it."""

    def keep(self) -> bool:
        """Still be the loop; False where another one took its turn. Raises StateError where nobody can say."""

    def holder(self) -> Mapping[str, object]:
        """``epoch``, ``host`` and ``pid`` of the loop that signed last, and ``ended``; empty when unknown."""

    def stopped(self) -> str:
        """What to do about a holder that is a stopped process (SIGSTOP) of this host; else empty."""

    def epoch(self) -> int:
        """The epoch that stands; a loop whose own it is not has been succeeded."""

    def raise_epoch(self, at_least: int = 1) -> int:
        """Signs with a new epoch, ``at_least`` the given one; durable on return."""

    def sign_off(self) -> None:
        """No call of this loop is under way any more."""

    def release(self) -> None:
        """The next loop may take over. Safe to call twice."""

    def is_held(self) -> bool:
        """Some process is the loop now, as far as anybody can tell."""


class State(Protocol):
    """What loop, telemetry and commands do with the state: the loop writes and trims, others read what it leaves."""

    @property
    def path(self) -> str:
        """Where it is, in words for people."""

    @property
    def intent(self) -> IntentPart: ...
    @property
    def memory(self) -> MemoryPart: ...
    @property
    def status(self) -> AnswersPart: ...
    @property
    def told(self) -> TerminalAnswers: ...
    @property
    def loop_lock(self) -> LoopTurn: ...

    def levers_signature(self) -> object:
        """Differs whenever what operators hold back does, as that of a ``Part``."""

    def read_levers(self) -> Levers:
        """All that are held; none before the first was pulled."""

    def change_levers(self, change: Callable[[Levers], Levers], *, anew: bool = False) -> tuple[Levers, Levers]:
        """What was held, and what ``change`` made of it, durably; ``anew``: also where nobody knows what was held."""

    def add_history(self, entries: Iterable[Mapping[str, object]]) -> None:
        """Add a line for each entry on what was done. Nothing is decided by it."""

    def find_history(self, *texts: str, newest: bool = False, most: int | None = None) -> Excerpt:
        """The lines that hold one of the texts; if asked, of the ``newest`` part alone, and about ``most`` of them."""

    def write_notes(self, notes: Mapping[str, object]) -> None:
        """Replace what operators should know of loop and pools."""

    def read_notes(self) -> dict[str, Any]:
        """The sections by name; none before a loop ran."""

    def note_in_force(self, digests: Digests) -> None:
        """The loop has this content of HF's two files in force."""

    def config_differences(self) -> list[Difference]:
        """The files of HF of which scripts and loop have read different contents."""

    def beat(self) -> None:
        """The loop lives."""

    def life_signs(self) -> LifeSigns:
        """The signs that loops have given, by the state's own clock."""

    def polls(self) -> dict[str, int]:
        """A number by request that differs after each poll of HF; numbers grow with time."""

    def listed_hosts(self) -> tuple[tuple[str, ...], int] | None:
        """The hosts that HF listed, and a number that differs after each list; None before HF's first."""

    def forget_polls(self, ids: Iterable[str]) -> None:
        """Forget polls and terminal answers of requests that left the state."""

    def since_intent(self) -> float:
        """Seconds from intent's last write to the loop's last sign of life; 0 when there is nothing to tell by."""

    def recovery_asked(self) -> bool:
        """A person asked to release the brake."""

    def recovery_done(self) -> None:
        """The brake is released, durably."""

    def sizes(self) -> Mapping[str, int]:
        """Bytes of each part that grows with what happens, by its name."""

    def refusal(self) -> OSError | None:
        """Why nothing can be written now; None where something can."""
