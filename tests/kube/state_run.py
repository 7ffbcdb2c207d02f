"""Chaos with the state on a real API server. Two loops and the scripts run as processes.

The machines are in the embedded cloud, which can be reached while the server cannot.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import urllib3

from provisioner.hostfactory.provider_config import KUBERNETES
from provisioner.lab.playground import INSTANCE
from provisioner.state.errors import StateUnreachable
from provisioner.state.kube.lease import LEASE_SECONDS
from provisioner.state.kube.objects import REQUESTS, RETURNS, STATES, collection, item
from tests.chaos.answer_checks import Call
from tests.chaos.arena import ROOT, SETTINGS, Arena
from tests.chaos.monkey import (
    Stage,
    loop_is_ended_by_its_supervisor,
    loop_is_killed,
    machines_are_taken,
    script_is_stopped_for_a_while,
    scripts_are_killed,
)
from tests.chaos.run import REST_SECONDS, Run
from tests.kube.client import Refused
from tests.kube.cluster import kubeconfig
from tests.kube.proxy import Proxy, Storm, Trouble
from tests.kube.space import Space
from tests.support.waiting import until

PATIENT = {"request_deadline_minutes": 20, "return_deadline_minutes": 20, "cancel_after_minutes": 1}
"""Deadlines that no outage of the server reaches."""


class StateArena(Arena):
    """A world whose loops and scripts reach their state through a proxy, or directly."""

    replicas = 2

    def __init__(self, seed: int, space: Space, proxy: Proxy | None, settings: Mapping[str, Any]) -> None:
        super().__init__(seed)
        self.settings = SETTINGS | settings
        self._admin, self.namespace = space.admin, space.name
        self.proxy = proxy
        self._way = (proxy.address, proxy.ca) if proxy else (space.admin.server, Path(str(space.admin.ca)))
        self.has_operator = True
        self._pods = 0

    def _configure(self) -> None:
        super()._configure()
        server, ca = self._way
        login = self.config / "state-kubeconfig"
        token = self._admin.headers["Authorization"].removeprefix("Bearer ")
        login.write_text(json.dumps(kubeconfig(server, token, ca=ca)))
        state = {"STATE": f"{KUBERNETES}{self.namespace}", "STATE_KUBECONFIG": str(login)}
        (self.config / f"{INSTANCE}prov_config.json").write_text(json.dumps(state))

    def surroundings(self) -> dict[str, str]:
        """Return the environment variables of one process. Each process has a work directory of its own, as a pod
        has."""
        self._pods += 1
        work = self.directory / f"pod-{self._pods}"
        work.mkdir()
        return super().surroundings() | {"HF_PROVIDER_WORKDIR": str(work)}

    def recorded(self) -> tuple[dict[str, tuple[str, int]], list[str]]:
        requests = {
            one["metadata"]["name"]: (one["spec"]["template"], one["spec"]["count"]) for one in self._list(REQUESTS)
        }
        return requests, [one["metadata"]["name"] for one in self._list(RETURNS)]

    def _list(self, resource: str) -> list[dict[str, Any]]:
        return list(self._get(collection(self.namespace, resource)).get("items") or ())

    def _get(self, path: str) -> dict[str, Any]:
        try:
            return self._admin.get(path)
        except (Refused, urllib3.exceptions.HTTPError) as error:
            raise StateUnreachable(str(error)) from error

    def act_as_operator(self, note: Callable[[str], None]) -> None:
        if self.has_operator:
            super().act_as_operator(note)

    def needs_an_operator(self) -> bool:
        return bool(self.brake())

    def brake(self) -> str:
        with suppress(StateUnreachable):
            found = self._get(item(self.namespace, STATES, INSTANCE))
            return str(found.get("status", {}).get("brake", ""))
        return ""

    def acts(self, begin: float, end: float) -> list[dict[str, Any]]:
        """Return the machines that were made or deleted between two times, from the cloud's chronicle."""
        events = [json.loads(line) for line in self.chronicle.read_text().splitlines() if line.endswith("}")]
        return [one for one in events if one["what"] in ("made", "delete") and begin < one["at"] < end]

    def status(self) -> subprocess.CompletedProcess[str]:
        """Return the output of `provisioner status`."""
        command = [sys.executable, "-m", "provisioner", "status"]
        return subprocess.run(
            command, env=self.surroundings(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )


def proxy_of(stage: Stage) -> Proxy:
    """Return the proxy between loops or scripts and their state."""
    assert isinstance(stage.arena, StateArena)
    assert stage.arena.proxy is not None
    return stage.arena.proxy


def is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped the process, or if the process has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return True


def loop_sleeps_past_its_lease(stage: Stage, chance: random.Random) -> str:
    seconds = LEASE_SECONDS + chance.uniform(1.0, 5.0)
    for loop in stage.arena.living():
        if not is_stopped(loop.pid):
            stage.arena.signal_loop(loop, signal.SIGSTOP)
            threading.Timer(seconds, stage.arena.signal_loop, (loop, signal.SIGCONT)).start()
            return f"{seconds:.1f} s"
    return "no loop is awake"


def storm_begins(stage: Stage, chance: random.Random) -> str:
    share = chance.choice([0.0, 0.1, 0.4])
    proxy_of(stage).storm = Storm(chance.randrange(10**6), share)
    return f"{share:.0%} of the calls"


def watches_are_cut(stage: Stage, chance: random.Random) -> str:
    return f"{proxy_of(stage).cut_watches()} watches"


def server_is_cut_off(stage: Stage, chance: random.Random) -> str:
    proxy, seconds = proxy_of(stage), chance.uniform(3.0, 15.0)
    proxy.trouble = Trouble.HANG
    proxy.cut()
    threading.Timer(seconds, setattr, (proxy, "trouble", Trouble.NONE)).start()
    return f"{seconds:.1f} s"


class StateRun(Run):
    """``with StateRun(seed, space, proxy) as run``: loops and scripts at work until the block ends. ``proxy``: None to
    call the server directly."""

    arena: StateArena
    acts = (
        *(storm_begins, watches_are_cut, scripts_are_killed, script_is_stopped_for_a_while, machines_are_taken) * 2,
        *(loop_sleeps_past_its_lease, loop_is_killed, loop_is_ended_by_its_supervisor, server_is_cut_off),
    )

    def __init__(
        self, seed: int, space: Space, proxy: Proxy | None = None, settings: Mapping[str, Any] = PATIENT
    ) -> None:
        super().__init__(seed, arena=StateArena(seed, space, proxy, settings))

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            print("\n".join([*self.broken(), *self.diary, self.logs()]))
        super().__exit__(*error)

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        """Wait until the condition holds. Raises AssertionError if a law of ARCHITECTURE.md is broken meanwhile."""
        until(lambda: self.broken() or condition(), seconds, every=0.1, what=what)
        assert not self.broken(), self.broken()

    def until_works(self, count: int = 1) -> None:
        """Wait until ``count`` new requests are answered completely and another request is in progress."""
        since = time.time()
        self.until(lambda: len(self._completed(since)) >= count and self.ledger.hf.requests, 90, "requests are served")

    def keep(self, turn: Callable[[], object], pause: float) -> None:
        """Call ``turn`` in a thread again and again, with a ``pause`` after each call, until the run ends."""
        thread = threading.Thread(target=self._keep, args=(turn, pause))
        self._threads.append(thread)
        thread.start()

    def _completed(self, since: float) -> list[str]:
        with self.ledger.lock:
            made = [call for call in self.ledger.calls if call.script == "requestMachines" and call.began > since]
            ids = [call.called.document["requestId"] for call in made if call.called and call.called.code == 0]
            return [id_ for id_ in ids if id_ in self.ledger.terminal]

    def wait_until(self, moment: float) -> None:
        """Wait until ``moment`` of the wall clock. Raises AssertionError if a law of ARCHITECTURE.md is broken
        meanwhile."""
        self.until(lambda: time.time() > moment, moment - time.time() + 5.0, "the time is over")

    def calls(self, begin: float, end: float) -> list[Call]:
        """Return the calls of scripts that began between two times and have ended."""
        with self.ledger.lock:
            return [call for call in self.ledger.calls if begin < call.began < end and call.called is not None]

    def come_to_rest(self) -> None:
        """Wait until no request, return request or machine changes any more.

        HF meanwhile returns machines, because an open request may wait for their room.
        """
        self._until(self._unsettled, REST_SECONDS, "at rest")

    def _unsettled(self) -> list[str]:
        with self.ledger.lock:
            hf = self.ledger.hf
            under_way = {name for names in hf.returns.values() for name in names}
            hf.to_return |= hf.hosts - under_way if hf.requests else set()
        return self.ledger.unsettled(self.arena.cloud()) + self._brakes()

    def finish(self) -> None:
        """Let all come to rest, return all machines, and judge."""
        if proxy := self.arena.proxy:
            proxy.trouble, proxy.storm = Trouble.NONE, None
        self.heal()
        self.come_to_rest()
        self.return_all()
        self.wind_up()
        assert not self.broken(), self.broken()

    def logs(self) -> str:
        """Return the end of the loops' log."""
        return (self.arena.logs / "run.log").read_text()[-3000:]
