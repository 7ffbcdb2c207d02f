"""The state directory: the state of scripts and loop, kept in files.

The scripts import this module at each call. So the module imports each part of the state only at the part's first use.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from provisioner.hostfactory import Answer, Loss, Polled, Recorded
from provisioner.names import RETURN_ID_PREFIX
from provisioner.state import atomic
from provisioner.state.errors import StateMissing, writing

if TYPE_CHECKING:
    from provisioner.hostfactory.provider_config import Digests
    from provisioner.state.holds import HoldStore
    from provisioner.state.intent_file import IntentStore
    from provisioner.state.journal import Journal
    from provisioner.state.loop_lock import LoopLock
    from provisioner.state.marker_files import ConfigMarks, Difference, Heartbeat, LifeSigns
    from provisioner.state.memory_file import MemoryStore
    from provisioner.state.poll_markers import Inventory, ReportedAnswers, Seen, ShownMaxNumbers
    from provisioner.state.refused_calls import RefusedCalls
    from provisioner.state.status_file import PoolStatusFile, StatusStore

INVENTORY_FILE, ANNOUNCED_FILE, POOL_STATUS_FILE = "hf-inventory.json", "announced.json", "pools.json"
DEMAND_FILE, SLURM_NODES_FILE = "demand.json", "slurm_nodes.json"

STATE_FILES = frozenset(
    {
        *("intent.json", "memory.json", "status.json", "holds.json"),
        *(INVENTORY_FILE, ANNOUNCED_FILE, POOL_STATUS_FILE, DEMAND_FILE, SLURM_NODES_FILE),
    }
)
"""The JSON files of the state in a state directory. The directory may also contain the JSON files of the
configuration."""


BLOCK = 4096
"""Bytes of a probe write. Some file systems store a smaller block in the directory entry. The probe would then succeed
on a full disk."""


class _Part:
    """A part of the state that is made at its first use. So a script imports only the parts that it needs."""

    def __init__(self, module: str, kind: str, place: str = "") -> None:
        """Set the module and the class of the part.

        ``place``: path of the part in the directory; empty if the part takes the directory itself.
        """
        self._module, self._kind, self._place = module, kind, place

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, state: StateFiles, _: type) -> Any:
        prepare = getattr(import_module(f"provisioner.state.{self._module}"), self._kind)
        path = os.path.join(state.path, self._place) if self._place else state.path
        part = state.__dict__[self._name] = prepare(path)
        return part


_part: Any = _Part
"""The class of the parts, typed as Any, because each attribute declares the type of its part."""


class StateFiles:
    """The files of a state directory. Each file's class is imported at its first use. The constructor reads and writes
    no file.

    Raises StateMissing if the path is relative and the working directory does not exist any more.
    """

    least_pause_seconds = 0.0
    intent: IntentStore = _part("intent_file", "IntentStore")
    memory: MemoryStore = _part("memory_file", "MemoryStore")
    status: StatusStore = _part("status_file", "StatusStore")
    pool_status: PoolStatusFile = _part("status_file", "PoolStatusFile", POOL_STATUS_FILE)
    demand: PoolStatusFile = _part("status_file", "PoolStatusFile", DEMAND_FILE)
    seen: Seen = _part("poll_markers", "Seen", "seen")
    terminal_answers: ReportedAnswers = _part("poll_markers", "ReportedAnswers", "seen")
    inventory: Inventory = _part("poll_markers", "Inventory", INVENTORY_FILE)
    announced: ShownMaxNumbers = _part("poll_markers", "ShownMaxNumbers", ANNOUNCED_FILE)
    refused: RefusedCalls = _part("refused_calls", "RefusedCalls", "refused")
    heartbeat: Heartbeat = _part("marker_files", "Heartbeat", "heartbeat")
    config: ConfigMarks = _part("marker_files", "ConfigMarks", "config")
    loop_lock: LoopLock = _part("loop_lock", "LoopLock", "loop.lock")
    holds: HoldStore = _part("holds", "HoldStore")
    journal: Journal = _part("journal", "Journal", "journal.jsonl")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self.path = os.path.abspath(path)
        except FileNotFoundError as error:
            raise StateMissing(
                f"{path}: no such directory: the working directory is gone. "
                "Give HF_PROVIDER_WORKDIR or --state-dir as an absolute path."
            ) from error
        self._release = os.path.join(self.path, "recover")
        self._taken_release = f"{self._release}.taken"

    def sizes(self) -> Mapping[str, int]:
        """Return the size in bytes of each file that grows with use, by name. Files that do not exist are left out."""
        paths = (self.journal.path, self.intent.path, self.memory.path, self.status.path)
        return {os.path.basename(path): facts.st_size for path in paths if (facts := atomic.stat_file(path))}

    def find_write_error(self) -> OSError | None:
        """Return the error that prevents writing here now; None if a test block can be written.

        The test block is removed again.
        """
        try:
            self.now()
        except OSError as error:
            return error
        return None

    def note_refusal(self, script: str, reason: str) -> None:
        """Record the reason why a script refuses its call; an empty reason if the script does not refuse the call.
        Raises StateError."""
        if reason or os.path.exists(f"{self.path}/refused/{script}"):
            self.refused.note(script, reason)

    def now(self) -> float:
        """Return the time by the file system's clock, in epoch seconds. The method writes a file for this, and removes
        the file again.

        Raises OSError.
        """
        from provisioner.state.marker_files import probe_time

        return probe_time(f"{self.path}/.probe.{os.getpid()}", bytes(BLOCK)) / 1e9


class _Operation:
    """A class attribute that returns a method of a part, for example ``journal.append``. The attribute has the name
    that ``ScriptState`` or ``State`` gives to this method."""

    def __init__(self, path: str) -> None:
        self._find = attrgetter(path)

    def __get__(self, state: StateFiles, _: type) -> Any:
        return self._find(state)


class StateDir(StateFiles):
    """The state directory and its operations: a ``ScriptState`` and a ``State``."""

    add_history = _Operation("journal.append")
    find_history = _Operation("journal.find")
    write_pool_status = _Operation("pool_status.write")
    read_pool_status = _Operation("pool_status.read")
    write_demand = _Operation("demand.write")
    read_demand = _Operation("demand.read")
    note_in_force = _Operation("config.note_in_force")
    beat = _Operation("heartbeat.touch")
    polls = _Operation("seen.marks")
    listed_hosts = _Operation("inventory.read")
    refused_calls = _Operation("refused.read")
    forget_polls = _Operation("terminal_answers.forget")
    available = _Operation("status.read_available")
    note_hosts = _Operation("inventory.note")
    shown = _Operation("announced.read")

    def seconds_since_intent(self) -> float:
        """Return the seconds from the last write of intent.json to the loop's last sign of life; 0 if unknown or
        negative.

        The file system's clock gives both times (law: time is an argument). The loop also writes intent when it trims
        old requests. After a trim, the number is smaller than the seconds since HF's last call. Raises StateUnreadable.
        """
        written = atomic.stat_file(self.intent.path)
        signs = [atomic.stat_file(path) for path in (self.heartbeat.path, self.loop_lock.path)]
        last = max((facts.st_mtime for facts in signs if facts is not None), default=None)
        return 0.0 if written is None or last is None else max(last - written.st_mtime, 0.0)

    def config_differences(self) -> list[Difference]:
        """Return each of HF's two files (provider config, templates) that scripts and loop have read with different
        contents. Raises StateError."""
        from provisioner.state.marker_files import differences

        return differences(self.config.read())

    def life_signs(self) -> LifeSigns:
        """Return the loop's signs of life. Raises StateError."""
        from provisioner.state.locks import find_lasting_holder
        from provisioner.state.marker_files import Heartbeat, LifeSigns

        lock, beat = self.loop_lock, self.heartbeat
        held = find_lasting_holder(f"{self.intent.path}.lock", self.now)
        seen = lock.holder(), beat.last_beat(), beat.silent_now()
        return LifeSigns(*seen, lock.fate(), Heartbeat(lock.path).last_beat(), lock.stopped_message(), held)

    def ask_release(self) -> None:
        """Record that an operator asks the loop to release the brake. Raises StateUnwritable."""
        atomic.replace(self._release, b"", durable=False)

    def release_asked(self) -> bool:
        """Return True if an operator has asked the loop to release the brake."""
        return os.path.exists(self._release) or os.path.exists(self._taken_release)

    def take_release(self) -> bool:
        """Return True if an operator has asked the loop to release the brake. ``forget_release`` later forgets only
        this release. A release that an operator asks for meanwhile stays. Raises StateUnwritable."""
        with writing(self._release), suppress(FileNotFoundError):
            os.replace(self._release, self._taken_release)
        return os.path.exists(self._taken_release)

    def forget_release(self) -> None:
        """Forget, durably, the release of the brake that ``take_release`` found last. Raises StateUnwritable."""
        atomic.remove(self._taken_release)

    # --- the scripts' calls -------------------------------------------------------------------------------------------

    def record_request(
        self, provisioner: str, template: str, count: int, *, created_wall: float, rc_account: str
    ) -> Recorded:
        """Record a request durably. Raises StateError; so does ``record_return``."""
        document = {"template": template, "count": count, "created_wall": created_wall}
        return self._record(provisioner, "requests", "", document | ({"rc_account": rc_account} if rc_account else {}))

    def record_return(self, provisioner: str, names: Iterable[str], *, created_wall: float) -> Recorded:
        document = {"names": list(names), "created_wall": created_wall}
        return self._record(provisioner, "returns", RETURN_ID_PREFIX, document)

    def _record(self, provisioner: str, table: str, prefix: str, document: dict[str, Any]) -> Recorded:
        from provisioner.state.new_ids import new_id

        id_ = prefix + new_id()
        self.intent.add({table: {id_: document}}, create_for=provisioner)
        return Recorded(id_, self.heartbeat.age_against(self.intent.path))

    def poll(self, ids: Iterable[str]) -> Polled:
        """Return the answer to each known id.

        The script touches the id's file in ``seen`` before it reads the answer. The loop announces a cancel before it
        reads ``seen``. So either the loop notices the poll, or the script notices the cancel.

        Raises StateError.
        """
        asked, touched, unmarked = list(ids), 0, []
        for id_ in asked:
            if os.path.exists(os.path.join(self.seen.path, id_)):
                touched = max(touched, self.seen.touch(id_))
            else:
                unmarked.append(id_)
        answers = self._answers(asked)
        if first_polled := answers.keys() & unmarked:
            for id_ in first_polled:
                touched = max(touched, self.seen.touch(id_))
            answers = self._answers(asked)
        for id_, answer in answers.items():
            if answer is not None and answer.ended:
                # Settle before printing, so that every later call prints the same answer even if other files are lost.
                answers[id_] = Answer(self.terminal_answers.settle_reported(id_, answer.text), ended=True)
        return Polled(answers, self.heartbeat.silent_seconds_until(touched) if touched else None)

    def _answers(self, ids: list[str]) -> dict[str, Answer | None]:
        """Return the answer to each id: the settled answer if there is one, else the published answer. The answer is
        None if the id is in intent and has no answer yet."""
        answers: dict[str, Answer | None] = {}
        unsettled = []
        for id_ in ids:
            if settled := self.terminal_answers.settled(id_):
                answers[id_] = settled
            else:
                unsettled.append(id_)
        if unsettled:
            # Before the loop's first cycle there are no answers. If all state is gone, reading intent fails.
            with suppress(StateMissing):
                answers |= self.status.read_answers(unsettled)
        if unpublished := set(unsettled) - answers.keys():
            answers |= dict.fromkeys(self.intent.find(unpublished))
        return answers

    def lost(self, machines: Iterable[str]) -> Mapping[str, Loss]:
        """Return the losses among ``machines``, except machines that HF has returned. Raises StateError."""
        try:
            published = self.status.read_lost()
        except StateMissing:
            if not os.path.isdir(self.path):
                raise
            # The loop has not written the file yet, or must write it again. Until then, report no losses.
            published = {}
        lost = {name: published[name] for name in machines if name in published}
        returned = self.intent.returned_names() if lost else frozenset()
        return {name: loss for name, loss in lost.items() if name not in returned}

    def note_shown(self, numbers: Mapping[str, int]) -> tuple[Mapping[str, int], str]:
        """Record and return the maxNumbers that HF is shown, by template. If HF was shown a higher number before, that
        number stays. Also return the path of the record.

        Raises StateError.
        """
        before = self.announced.read()
        from provisioner.hostfactory.templates import get_higher

        shown = {name: get_higher(number, before.get(name, number)) for name, number in numbers.items()}
        if before | shown != before:
            self.announced.write(before | shown)
        return shown, self.announced.path

    def note_read(self, digests: Digests) -> None:
        """Record the digests of HF's two files (provider config, templates) as the scripts have read them. Raises
        StateError."""
        self.config.note("scripts", digests)
