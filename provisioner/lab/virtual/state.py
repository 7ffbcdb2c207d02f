"""A state in memory: one object that is both a ``ScriptState`` and a ``State``. The object outlives the loops that use
it.

A scenario can damage parts of the state as files can be damaged. A part can be lost, unreadable, or replaced by an old
copy.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from provisioner.hostfactory import Answer, Loss, Polled, Recorded
from provisioner.hostfactory.provider_config import Digests
from provisioner.model import NO_HOLDS, Hold, HoldKind, Holds, Intent, Memory, Request, ReturnRequest
from provisioner.names import REQUEST_ID_LENGTH, RETURN_ID_PREFIX
from provisioner.state.errors import Condition, StateMissing, StateUnreadable, condition
from provisioner.state.holds import with_hold, without_holds
from provisioner.state.journal import Excerpt
from provisioner.state.marker_files import Difference, LifeSigns
from provisioner.state.refused_calls import Refusals

if TYPE_CHECKING:
    from provisioner.state.protocols import ScriptState, State

LETTERS = string.ascii_lowercase + string.digits
UNREADABLE = "The virtual state cannot be read now."


class VirtualIntent:
    """The requests and return requests of HF."""

    def __init__(self) -> None:
        self.current: Intent | None = None
        self.readable = True
        self._noted = 0

    def add(self, provisioner: str, request: Request | ReturnRequest) -> None:
        """Record another request or return request. Raises StateUnreadable while a scenario makes intent unreadable."""
        self._check()
        intent = self.current or Intent(provisioner, 0, {}, {})
        requests, returns = dict(intent.requests), dict(intent.returns)
        if isinstance(request, Request):
            requests[request.id] = request
        else:
            returns[request.id] = request
        self._write(Intent(intent.provisioner, intent.generation + 1, requests, returns))

    def _write(self, intent: Intent) -> None:
        self.current, self._noted = intent, max(self._noted, intent.generation)

    def _check(self) -> None:
        if not self.readable:
            raise StateUnreadable(UNREADABLE)

    def exists(self) -> bool:
        return self.current is not None

    def existed(self) -> bool:
        return self._noted > 0

    def signature(self) -> object:
        return None if self.current is None else (self.current.generation, self.readable)

    def condition(self) -> Condition:
        if not self.readable:
            return Condition.UNREADABLE
        return condition(None if self.current is None else self.current.generation, self._noted)

    def read_newest(self) -> tuple[Intent, int]:
        self._check()
        if self.current is None:
            raise StateMissing("The virtual intent is missing.")
        return self.current, self._noted

    def read(self) -> Intent:
        return self.read_newest()[0]

    def note_newest(self, generation: int) -> None:
        self._noted = max(self._noted, generation)

    def remove(self, identifiers: Iterable[str]) -> float:
        self._check()
        intent, doomed = self.current, set(identifiers)
        if intent is not None and not doomed.isdisjoint(intent.requests.keys() | intent.returns.keys()):
            requests = {id_: one for id_, one in intent.requests.items() if id_ not in doomed}
            returns = {id_: one for id_, one in intent.returns.items() if id_ not in doomed}
            self._write(Intent(intent.provisioner, intent.generation + 1, requests, returns))
        return 0.0


class VirtualMemory:
    """The loop's memory as a value. A scenario can delete the memory or restore an old copy."""

    def __init__(self) -> None:
        self.copies: list[Memory] = []
        """The memories of this run that a scenario may restore, the newest last."""
        self.latest: Memory | None = None
        self._written = 0
        self._generation = 0
        """The number of writes up to the current memory."""
        self._lives = 0

    def exists(self) -> bool:
        return self.latest is not None

    def existed(self) -> bool:
        return self._written > 0

    def signature(self) -> object:
        return None if self.latest is None else self._generation

    def condition(self) -> Condition:
        return condition(None if self.latest is None else self._generation, self._written)

    def read(self) -> Memory:
        if self.latest is None:
            raise StateMissing("The virtual memory is missing.")
        return self.latest

    def write(self, memory: Memory) -> None:
        self._written += 1
        self._generation = self._written
        self.latest = memory
        if not self.copies or memory.written.time - self.copies[-1].written.time >= 60.0:
            self.copies.append(memory)

    def begin_life(self) -> int:
        self._lives += 1
        return self._lives

    def lose(self) -> None:
        """Delete the memory."""
        self.latest = None

    def put_back(self, before: float) -> None:
        """Restore the memory as it was at this loop time. If all copies are newer, restore the oldest copy."""
        old = [memory for memory in self.copies if memory.written.time <= before] or self.copies[:1]
        self.latest, self._generation = old[-1] if old else None, 0


class VirtualAnswers:
    """The answers that the loop published for the scripts."""

    def __init__(self) -> None:
        self.answers: Mapping[str, Answer] | None = None
        self.losses: Mapping[str, Loss] = {}
        self.available: Mapping[str, int] = {}
        self._written = 0

    def exists(self) -> bool:
        return self.answers is not None

    def existed(self) -> bool:
        return self._written > 0

    def signature(self) -> object:
        return None if self.answers is None else self._written

    def condition(self) -> Condition:
        return Condition.FINE if self.exists() else Condition.NEW

    def read_all(self) -> dict[str, Answer]:
        if self.answers is None:
            raise StateMissing("The virtual answers are missing.")
        return dict(self.answers)

    def read_lost(self) -> Mapping[str, Loss]:
        if self.answers is None:
            raise StateMissing("The virtual answers are missing.")
        return self.losses

    def write(self, answers: Mapping[str, Answer], lost: Mapping[str, Loss], available: Mapping[str, int]) -> None:
        self._written += 1
        self.answers, self.losses, self.available = answers, lost, available

    def lose(self) -> None:
        """Delete the answers."""
        self.answers, self.losses = None, {}


class VirtualTerminalAnswers:
    """The settled terminal answers: those that HF has read, and those that the loop has revised before HF read them."""

    def __init__(self) -> None:
        self._read: dict[str, str] = {}
        self._claimed: dict[str, str] = {}

    def settle_reported(self, id_: str, text: str) -> str:
        """Return the answer that the script must print. If the request's terminal answer is already settled, return the
        settled answer. Otherwise settle ``text``, so that later calls return it too."""
        return self._read.setdefault(id_, self._claimed.get(id_, text))

    def ids(self) -> frozenset[str]:
        return frozenset(self._read)

    def answers(self) -> dict[str, Answer]:
        return {id_: Answer(text, True) for id_, text in {**self._claimed, **self._read}.items()}

    def settled(self, id_: str) -> Answer | None:
        text = self._read.get(id_, self._claimed.get(id_))
        return None if text is None else Answer(text, True)

    def settle_revised(self, id_: str, text: str) -> bool:
        if id_ in self._read:
            return False
        self._claimed[id_] = text
        return True

    def forget(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            self._read.pop(id_, None)
            self._claimed.pop(id_, None)


class VirtualTurn:
    """A loop lock that is always granted. A scenario can therefore let two loops run at once. The lock stores only the
    epoch."""

    def __init__(self) -> None:
        self._epoch = 0

    def acquire(self, wait: float | None = None, stop: Callable[[], bool] = lambda: False) -> bool:
        return True

    def keep(self) -> bool:
        return True

    def holder(self) -> Mapping[str, object]:
        return {"epoch": self._epoch}

    def stopped_message(self) -> str:
        return ""

    def has_calls(self) -> bool:
        return False

    def epoch(self) -> int:
        return self._epoch

    def raise_epoch(self, at_least: int = 1, wait_seconds: float = 0.0) -> int:
        self._epoch = max(self._epoch + 1, at_least)
        return self._epoch

    def end_wait(self) -> None: ...

    def sign_off(self) -> None: ...

    def release(self) -> None: ...

    def is_held(self) -> bool:
        return True


class VirtualHolds:
    """The holds that operators have set."""

    def __init__(self) -> None:
        self.current = NO_HOLDS
        self._written = 0

    def signature(self) -> object:
        return self._written or None

    def read(self) -> Holds:
        return self.current

    def change(self, change: Callable[[Holds], Holds], *, replace_unusable: bool = False) -> tuple[Holds, Holds]:
        before, after = self.current, change(self.current)
        if replace_unusable or after != before:
            self._write(after)
        return before, after

    def set_hold(self, hold: Hold) -> None:
        """Set a hold."""
        self.change(lambda holds: with_hold(holds, hold))

    def release(self, kind: HoldKind, target: str) -> None:
        """Release a hold."""
        self.change(lambda holds: without_holds(holds, [kind], Hold(kind, target)))

    def _write(self, holds: Holds) -> None:
        self.current = holds
        self._written += 1


class VirtualState:
    """A whole state in memory."""

    path = "virtual"
    least_pause_seconds = 0.0

    def __init__(self, seed: int) -> None:
        self.intent = VirtualIntent()
        self.memory = VirtualMemory()
        self.status = VirtualAnswers()
        self.terminal_answers = VirtualTerminalAnswers()
        self._polls: dict[str, int] = {}
        self._polled = 0
        self._listed: tuple[tuple[str, ...], int] | None = None
        self._noted: Iterable[str] = ()
        self.loop_lock = VirtualTurn()
        self.holds = VirtualHolds()
        self.watchers: list[Callable[[], None]] = []
        """Functions that are called when HF makes a call of a script, and when a hold changes."""
        self._shown: Mapping[str, int] = {}
        self._demand: dict[str, Any] = {}
        self._chance = random.Random(seed)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def add_history(self, entries: Iterable[Mapping[str, object]]) -> None: ...

    def find_history(self, *texts: str, newest: bool = False, most: int | None = None) -> Excerpt:
        return Excerpt()

    def write_pool_status(self, notes: Mapping[str, object]) -> None: ...

    def read_pool_status(self) -> dict[str, Any]:
        return {}

    def note_in_force(self, digests: Digests) -> None: ...

    def config_differences(self) -> list[Difference]:
        return []

    def beat(self) -> None: ...

    def life_signs(self) -> LifeSigns:
        return LifeSigns()

    def polls(self) -> dict[str, int]:
        return dict(self._polls)

    def listed_hosts(self) -> tuple[tuple[str, ...], int] | None:
        return self._listed

    def refused_calls(self) -> list[Refusals]:
        return []

    def forget_polls(self, ids: Iterable[str]) -> None:
        for id_ in (left := tuple(ids)):
            self._polls.pop(id_, None)
        self.terminal_answers.forget(left)

    def seconds_since_intent(self) -> float:
        return 0.0

    def release_asked(self) -> bool:
        return False

    take_release = release_asked

    def forget_release(self) -> None: ...

    def sizes(self) -> Mapping[str, int]:
        return {}

    def find_write_error(self) -> None: ...

    # --- operators ----------------------------------------------------------------------------------------------------

    def set_hold(self, hold: Hold) -> None:
        self.holds.set_hold(hold)
        self._changed()

    def release(self, kind: HoldKind, target: str) -> None:
        self.holds.release(kind, target)
        self._changed()

    # --- scripts ------------------------------------------------------------------------------------------------------

    def record_request(
        self, provisioner: str, template: str, count: int, *, created_wall: float, rc_account: str = ""
    ) -> Recorded:
        id_ = self._new_id()
        self.intent.add(provisioner, Request(id_, template, count, created_wall, rc_account))
        self._changed()
        return Recorded(id_, None)

    def record_return(self, provisioner: str, names: Iterable[str], *, created_wall: float) -> Recorded:
        id_ = RETURN_ID_PREFIX + self._new_id()
        self.intent.add(provisioner, ReturnRequest(id_, tuple(names), created_wall))
        self._changed()
        return Recorded(id_, None)

    def poll(self, ids: Iterable[str]) -> Polled:
        answers = {}
        for id_ in ids:
            answer = self.terminal_answers.settled(id_) or (self.status.answers or {}).get(id_)
            if answer is None and not self._is_recorded(id_):
                continue
            self._polled += 1
            self._polls[id_] = self._polled
            answers[id_] = (
                Answer(self.terminal_answers.settle_reported(id_, answer.text), True)
                if answer and answer.ended
                else answer
            )
        self._changed()
        return Polled(answers, None)

    def _is_recorded(self, id_: str) -> bool:
        intent = self.intent.current
        return intent is not None and (id_ in intent.requests or id_ in intent.returns)

    def lost(self, machines: Iterable[str]) -> Mapping[str, Loss]:
        intent, losses = self.intent.current, self.status.losses
        if not losses:
            return {}
        returns = intent.returns.values() if intent else ()
        returned = {name for request in returns for name in request.names}
        return {name: losses[name] for name in machines if name in losses and name not in returned}

    def available(self) -> Mapping[str, int]:
        return self.status.available

    def note_hosts(self, names: Mapping[str, object]) -> None:
        listed, number = self._listed or ((), 0)
        # A changed list of hosts is always a new object.
        self._listed = listed if names is self._noted else tuple(names), number + 1
        self._noted = names
        self._changed()

    def write_demand(self, report: Mapping[str, object]) -> None:
        self._demand = dict(report)

    def read_demand(self) -> dict[str, Any]:
        return self._demand

    def note_shown(self, numbers: Mapping[str, int]) -> tuple[Mapping[str, int], str]:
        self._shown = {name: max(number, self._shown.get(name, number)) for name, number in numbers.items()}
        return self._shown, self.path

    def note_read(self, digests: Digests) -> None:
        """Ignore the digests, because scripts and loop share one configuration in virtual time."""

    def note_refusal(self, script: str, reason: str) -> None:
        """Ignore the refusal, because virtual scripts never refuse a call for a local problem."""

    def _changed(self) -> None:
        for watcher in self.watchers:
            watcher()

    def _new_id(self) -> str:
        return "".join(self._chance.choices(LETTERS, k=REQUEST_ID_LENGTH))


if TYPE_CHECKING:

    def _implements(state: VirtualState) -> tuple[ScriptState, State]:
        return state, state
