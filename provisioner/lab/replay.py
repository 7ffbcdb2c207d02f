"""The replay of recorded calls of HostFactory: the same calls are made to the scripts again.

In a replay, requests and machines have other ids and names than in the recording. The replay finds the new ids and
names in the scripts' answers. In later calls, the new ids and names replace the recorded ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from provisioner.hostfactory.provider_config import SCRIPTS
from provisioner.lab.trace import Document, Event, listed, machines_in
from provisioner.state.protocols import State

LONGEST_WAIT = 1e9
"""The longest pause between two calls in seconds (thirty years). A trace may contain a gap that is longer than a
process can wait."""


class ScriptResult(NamedTuple):
    """The result of a script call."""

    code: int
    answer: Document
    """The document that the script printed; empty if the script refused the call."""


CallScript = Callable[[str, Document], ScriptResult]


# --- where calls are replayed -----------------------------------------------------------------------------------------


def is_loop_alive(state: State) -> bool:
    """Return True if a loop works on this state: a loop has the lock, or a loop on another host has written a heartbeat
    lately."""
    return state.loop_lock.is_held() or bool(state.life_signs().is_running)


# --- replaying --------------------------------------------------------------------------------------------------------


@dataclass
class Replay:
    """A replay with its counts. The replay also stores the ids and names that it has found so far."""

    call: CallScript
    speed: float = 1.0
    """Factor by which the replay is faster than the recording."""
    longest_gap: float = float("inf")
    """Maximum seconds of waiting between two calls."""
    wait: Callable[[float], None] = time.sleep
    calls: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unknown_machines: set[str] = field(default_factory=set)
    """Recorded names of machines for which the replay has no machine. These names are sent unchanged."""
    _ids: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _made: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Machines of each request of the replay, as the scripts last listed them."""
    _recorded: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Machines of each request of the recording, as the trace last listed them."""

    def play(self, events: Iterable[Event]) -> None:
        """Make every call.

        Between two calls, wait for the recorded time divided by ``speed``, but at most ``longest_gap`` seconds.
        """
        before: float | None = None
        for event in events:
            if before is not None:
                self.wait(min((event.time - before) / self.speed, self.longest_gap, LONGEST_WAIT))
            before = event.time
            self._play(event)

    def report(self) -> Document:
        """Return the number of calls and of refused calls by command.

        Also return the number of recorded machines for which the replay has no machine.
        """
        return {
            "calls": dict(sorted(self.calls.items())),
            "refused": dict(sorted(self.refused.items())),
            "unknown_machines": len(self.unknown_machines),
        }

    def _play(self, event: Event) -> None:
        self._recorded |= {old: machines for old, machines in event.machines.items() if machines}
        answer = self._make_call(event.command, self._translate(event))
        if event.request and "requestId" in answer:
            self._ids[event.request] = answer["requestId"]
        self._made |= machines_in(answer)

    def _make_call(self, command: str, document: Document) -> Document:
        self.calls[command] += 1
        result = self.call(command, document)
        self.refused[command] += result.code != 0
        return result.answer

    def _translate(self, event: Event) -> Document:
        """Return the document of a call with the ids and names of the replay. Parts that the scripts refuse stay
        unchanged, so that the scripts refuse them again."""
        document = dict(event.document)
        if event.command == "getRequestStatus":
            _replace(document, "requests", self._request)
        elif "machines" in document:
            self._ask_for(listed(document, "machines"))
            _replace(document, "machines", self._machine)
        return document

    def _request(self, entry: Document) -> Document:
        match entry:
            case {"requestId": str(old)} if old in self._ids:
                return entry | {"requestId": self._ids[old]}
        return entry

    def _machine(self, entry: Document) -> Document:
        own, given = self._own_name(entry), _names(entry)
        if own is None:
            self.unknown_machines.update([*given.values()][:1])
            return entry
        return entry | dict.fromkeys(given, own)

    def _own_name(self, entry: Document) -> str | None:
        """Return the name of the replay's machine for a recorded machine; None if there is no such machine.

        Try each field that may contain the recorded machine's name. In Morgan Stanley's traces, the field machineId
        contains a pod's uid instead of the name.
        """
        return next((self._names[name] for name in _names(entry).values() if name in self._names), None)

    def _ask_for(self, listed: Iterable[Document]) -> None:
        """Poll all requests of the replay once if ``listed`` contains a recorded machine that has no known counterpart
        in the replay. The answers may name this counterpart. ``listed``: the machines in a recorded call of HF."""
        self._pair()
        if self._ids and any(self._own_name(one) is None for one in listed):
            requests = [{"requestId": new} for new in self._ids.values()]
            self._made |= machines_in(self.call("getRequestStatus", {"requests": requests}).answer)
            self._pair()

    def _pair(self) -> None:
        """Map the recorded machines of each request to the replay's machines, in the same order.

        Morgan Stanley's traces may list no machines. Then the recorded machines are named ``<request id>-<n>``.
        """
        for old, new in self._ids.items():
            made = self._made.get(new, ())
            recorded = self._recorded.get(old) or [f"{old}-{number}" for number in range(len(made))]
            for name, own in zip(recorded, made, strict=False):
                self._names.setdefault(name, own)


def _replace(document: Document, key: str, own: Callable[[Document], Document]) -> None:
    """Replace each object at ``key`` by the object that ``own`` returns for it. Keep all other values.

    The value at ``key`` may be a single object or a list.
    """
    match document.get(key):
        case dict(entry):
            document[key] = own(entry)
        case list(entries):
            document[key] = [own(entry) if isinstance(entry, dict) else entry for entry in entries]


def _names(entry: Document) -> dict[str, str]:
    """Return the keys under which a machine has its name, each with the name. Leave out empty names and names that are
    not texts, because the scripts refuse them."""
    return {key: entry[key] for key in ("machineId", "name") if isinstance(entry.get(key), str) and entry[key]}


def run_script(command: str, document: Document) -> ScriptResult:
    """Call a script as HF does, with the environment of this process."""
    with tempfile.NamedTemporaryFile("w", prefix="hf_in_", suffix=".json") as file:
        file.write(json.dumps(document))
        file.flush()
        done = subprocess.run(
            [os.path.join(SCRIPTS, f"{command}.sh"), "-f", file.name],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    return ScriptResult(done.returncode, json.loads(done.stdout) if done.returncode == 0 else {})
