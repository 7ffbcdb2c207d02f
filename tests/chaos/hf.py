"""A small model of HostFactory. The model runs the real scripts and believes their output. It sometimes polls requests
that have already ended."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from provisioner.hostfactory.provider_config import SCRIPTS
from tests.chaos.answer_checks import Call, Ledger
from tests.chaos.arena import TEMPLATES, Arena
from tests.support.hostfactory.provider import Called

TEMPLATE_IDS = sorted(TEMPLATES)
CALL_SECONDS = 60.0
POLL_SECONDS, DEMAND_SECONDS = 0.5, 0.4
"""A real HF polls every 30 s. The other times of the test are shortened by the same ratio."""

FORGOTTEN_SECONDS = 8.0
"""Seconds until an operator returns HF's hosts after HF lost its database; the provisioner keeps them until then."""

MOST = 20
"""The largest number of machines that HF wants."""


class Accident:
    """A signal that the next process of the script ``script`` gets, ``after`` seconds after the start of the process.
    The signal is SIGKILL or SIGSTOP. After a SIGSTOP, the process gets SIGCONT ``later`` seconds later."""

    def __init__(self, script: str, number: signal.Signals, after: float, later: float = 0.0) -> None:
        self.script, self.number, self.after, self.later = script, number, after, later

    def befalls(self, group: int) -> None:
        """Wait for ``after`` seconds. Then send the signal, and SIGCONT after a SIGSTOP, to the process group
        ``group``."""
        time.sleep(self.after)
        with suppress(ProcessLookupError):
            os.killpg(group, self.number)
            if self.number is signal.SIGSTOP:
                time.sleep(self.later)
                os.killpg(group, signal.SIGCONT)


class HostFactory:
    """The model of HostFactory, with two threads. One thread polls open requests and lists the hosts. The other thread
    requests machines and returns some of them."""

    def __init__(self, arena: Arena, ledger: Ledger) -> None:
        self._arena, self._ledger = arena, ledger
        seed = arena.seed
        self._chance = random.Random(f"{seed} demand")
        self._repeats = random.Random(f"{seed} poll")
        self._accidents: list[Accident] = []
        self._ended = threading.Event()
        self.wants = True
        """False if HF requests no machines, and returns machines only if the provisioner asks for it."""
        self.asks_again = True
        """True if HF sometimes asks for requests that have ended."""
        self._threads = [threading.Thread(target=self._go_on, args=turn) for turn in self._turns()]
        self.errors: list[BaseException] = []

    def _turns(self) -> list[tuple[Any, float]]:
        return [(self._poll, POLL_SECONDS), (self._demand, DEMAND_SECONDS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let the running calls end, and end both threads."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def meets(self, accident: Accident) -> None:
        """Plan an accident for the next call of the script ``accident.script``."""
        self._accidents.append(accident)

    def _accident_of(self, script: str) -> Accident | None:
        for accident in self._accidents:
            if accident.script == script:
                self._accidents.remove(accident)
                return accident
        return None

    def _go_on(self, turn: Any, pause: float) -> None:
        while not self._ended.wait(pause):
            try:
                turn()
            except BaseException as error:
                self.errors.append(error)
                raise

    # --- what HF does -------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        with self._ledger.lock:
            view = self._ledger.hf
            asked = [*view.requests, *view.returns]
            over = sorted(self._ledger.terminal)
            hosts = sorted(view.hosts)
        if over and self.asks_again and self._repeats.random() < 0.3:
            asked.append(self._repeats.choice(over))
        if asked:
            self.call("getRequestStatus", {"requests": [{"requestId": id_} for id_ in dict.fromkeys(asked)]})
        call = self.call("getReturnRequests", machines(hosts))
        if call.called is not None and call.called.code == 0 and (lost := call.called.document["requests"]):
            # A machine that ran before the call may rightly be gone; one that runs after it was never gone.
            self._ledger.reclaims([entry["machine"] for entry in lost], self._arena.phases())
        if self._repeats.random() < 0.1:
            self.call("getAvailableTemplates", {})

    def _demand(self) -> None:
        with self._ledger.lock:
            view = self._ledger.hf
            long_ago = time.time() - FORGOTTEN_SECONDS
            to_return = sorted(view.to_return | {name for name, at in self._ledger.forgotten.items() if at < long_ago})
            under_way = {name for names in view.returns.values() for name in names}
            idle = sorted(view.hosts - under_way - view.to_return)
            wanted = len(view.hosts) + sum(self._ledger.templates[id_][1] for id_ in view.requests)
        if to_return:
            self.call("requestReturnMachines", machines(to_return))
        elif not self.wants:
            return
        elif idle and self._chance.random() < (0.6 if wanted >= MOST else 0.15):
            self.call("requestReturnMachines", machines(self._chance.sample(idle, min(len(idle), 4))))
        elif wanted < MOST:
            template = {"templateId": self._chance.choice(TEMPLATE_IDS), "machineCount": self._chance.randint(1, 6)}
            self.call("requestMachines", {"template": template})

    def call(self, script: str, document: Mapping[str, Any]) -> Call:
        """Run a script to its end. If an accident is planned for this script, send the accident's signals to the
        process."""
        call = self._ledger.begins(script, document)
        file = self._arena.directory / f"hf_in_{call.number}"
        file.write_text(json.dumps(document))
        process = subprocess.Popen(
            [os.path.join(SCRIPTS, f"{script}.sh"), "-f", str(file)],
            env=self._arena.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        accident = self._accident_of(script)
        if accident is not None:
            accident.befalls(process.pid)
        try:
            out, err = process.communicate(timeout=CALL_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        file.unlink()
        killed = accident is not None and accident.number is signal.SIGKILL
        self._ledger.ends(call, Called(process.returncode, out.decode(), err.decode()), killed=killed)
        return call


def machines(names: list[str]) -> dict[str, Any]:
    """Return a script's input that names these machines."""
    return {"machines": [{"name": name, "machineId": name} for name in names]}
