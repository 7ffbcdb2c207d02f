"""``provisioner demand``, the loop and the scripts as processes. SIGKILL ends them at random while the number of wanted
machines changes. Each request is made only once, and in the end as many machines run as are wanted.

``DEMAND_SEEDS=20 pytest -m chaos tests/chaos/test_demand_killed.py`` plays more seeds. ``DEMAND_SEED`` is the first
seed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from provisioner.demand.service import ACCOUNT
from provisioner.names import get_request_id
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from provisioner.testing.waiting import PATIENCE
from tests.chaos.answer_checks import PREFIX, Ledger, of_ours
from tests.chaos.arena import CAPS, Arena

pytestmark = pytest.mark.chaos

SEEDS = int(os.environ.get("DEMAND_SEEDS", "1"))
FIRST = int(os.environ.get("DEMAND_SEED", "0"))
STORM_SECONDS = 25.0
REST_SECONDS = 60.0
MOST = 4
"""The largest number of machines of a template that is ever wanted. The places have room for more."""
RECENT_SECONDS = 15.0 * PATIENCE
"""Seconds after a change of the wish in which a step may still follow the old wish, for example because the service was
killed."""
LAST = {"Pods": 3, "Vms": 2, "Both": 1}


class Site(Arena):
    """The embedded cloud with a loop and a demand service. A supervisor restarts the loop and the service whenever they
    have ended."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.chance = random.Random(f"{seed} demand")
        self.ledger = Ledger(CAPS)
        self.diary: list[str] = []
        self.broken: list[str] = []
        self._service: subprocess.Popen[bytes] | None = None
        self._wishes: list[tuple[float, Mapping[str, int]]] = []
        self._asked = Counter[str]()
        self._read = 0
        self._began = time.monotonic()
        self._never = threading.Event()

    def _configure(self) -> None:
        super()._configure()
        wish = self.directory / "wanted"
        source = {"kind": "command", "argv": ["/bin/cat", str(wish)]}
        pace = {"interval_seconds": 0.5, "fall_after_seconds": 2, "minimum_age_seconds": 1, "rise_at_once": 2}
        document = {**pace, "fall_share": 0.5, "sources": {"file": source}}
        (self.config / "demand.yaml").write_text(json.dumps(document))
        self.want({})

    def want(self, wish: Mapping[str, int]) -> None:
        """Change the number of wanted machines in the file that the source reads."""
        self._wishes.append((time.monotonic(), wish))
        aside = self.directory / "wanted.new"
        aside.write_text(json.dumps(wish))
        aside.rename(self.directory / "wanted")
        self.note(f"wanted: {wish}")

    def note(self, words: str) -> None:
        self.diary.append(f"{time.monotonic() - self._began:6.2f}  {words}")

    def close(self) -> None:
        """End the demand service, then all others."""
        if self._service is not None:
            self._service.kill()
            self._service.wait()
        super().close()

    # --- one turn of the watch ----------------------------------------------------------------------------------------

    def watch(self, seconds: float) -> None:
        """Check again and again for ``seconds``. Before each check, start the processes again that have ended."""
        end = time.monotonic() + seconds
        while True:
            self.check()
            if (left := end - time.monotonic()) <= 0:
                return
            self._never.wait(min(left, 0.1))

    def check(self) -> None:
        if self._service is None or self._service.poll() is not None:
            with (self.logs / "demand.log").open("ab") as log:
                self._service = subprocess.Popen(
                    self.command("demand"), env=self.surroundings(), stdout=log, stderr=log, start_new_session=True
                )
        if not self.living():
            self.begin_loop()
        with suppress(StateError):
            self.ledger.records(*self.recorded())
        with self.chronicle.open() as file:
            file.seek(self._read)
            while (line := file.readline()).endswith("\n"):
                self._read = file.tell()
                self.ledger.happens(json.loads(line))
        asked = self.count_asked()
        recent = [wish for at, wish in self._wishes if time.monotonic() - at < RECENT_SECONDS] + [self._wishes[-1][1]]
        for template, number in asked.items():
            wanted = max(wish.get(template, 0) for wish in recent)
            if number > max(self._asked[template], wanted):
                self.broken.append(f"{self.diary[-1]}: {number} of {template} asked, at most {wanted} wanted")
        self._asked = asked

    def count_asked(self) -> Counter[str]:
        """Return, by template, the number of requested machines. Do not count machines that were returned or reported
        as failed."""
        state = StateDir(self.state)
        try:
            intent = state.intent.read()
        except StateError:
            return Counter()
        answers = dict(state.terminal_answers.answers())
        with suppress(StateError):
            answers |= {id_: answer for id_, answer in state.status.read_all().items() if id_ not in answers}
        requests = {id_: one for id_, one in intent.requests.items() if one.rc_account == ACCOUNT}
        gone = {name for one in intent.returns.values() for name in one.names}
        for id_ in requests.keys() & answers.keys():
            machines = json.loads(answers[id_].text)["machines"]
            gone |= {machine["name"] for machine in machines if machine["result"] == "fail"}
        asked = Counter[str]()
        for one in requests.values():
            asked[one.template] += one.count
        for name in gone:
            if (id_ := get_request_id(PREFIX, name)) in requests:
                asked[requests[id_].template] -= 1
        return asked

    # --- disturbances -------------------------------------------------------------------------------------------------

    def kill_service(self) -> None:
        if self._service is not None:
            self._service.kill()
            self._service.wait()

    def kill_script(self) -> None:
        """Kill the next script of the service, some time after its start."""
        assert self._service is not None
        end = time.monotonic() + 3.0
        children = Path(f"/proc/{self._service.pid}/task/{self._service.pid}/children")
        while time.monotonic() < end:
            with suppress(OSError):
                if found := children.read_text().split():
                    self._never.wait(self.chance.uniform(0.0, 0.2))
                    os.kill(int(found[0]), 9)
                    return
            self._never.wait(0.002)

    def kill_loop(self) -> None:
        for loop in self.living():
            loop.kill()
            loop.wait()

    def take_machine(self) -> None:
        names = sorted(one["name"] for one in of_ours(self.cloud()))[:1]
        self.ledger.taken.update(names)
        self.preempt(names)

    def change_wish(self) -> None:
        self.want({template: self.chance.choice([0, self.chance.randint(1, MOST)]) for template in LAST})

    # --- the rest -----------------------------------------------------------------------------------------------------

    def unsettled(self, wish: Mapping[str, int]) -> list[str]:
        """Return the differences between what is wanted, what was requested, what runs and what is reported."""
        wanted = {template: number for template, number in wish.items() if number}
        machines = of_ours(self.cloud())
        running = Counter(
            self.ledger.templates.get(get_request_id(PREFIX, one["name"]) or "", ("?",))[0]
            for one in machines
            if one["phase"] == "running"
        )
        rows: dict[str, Any] = StateDir(self.state).read_demand().get("templates", {})
        reported = {key: {name: row[key] for name, row in rows.items() if row[key]} for key in ("asked", "running")}
        seen = {
            "asked by intent": {**+self.count_asked()},
            "running": {**running},
            "reported asked": reported["asked"],
            "reported running": reported["running"],
        }
        problems = [f"{what}: {found}, wanted {wanted}" for what, found in seen.items() if found != wanted]
        return problems + [f"{one['name']} is {one['phase']}" for one in machines if one["phase"] != "running"]

    def come_to_rest(self, wish: Mapping[str, int]) -> None:
        self.want(wish)
        end = time.monotonic() + REST_SECONDS * PATIENCE
        while problems := self.unsettled(wish):
            assert time.monotonic() < end, self.failure_message(problems)
            self.watch(0.5)
        assert not (broken := self.broken + self.ledger.broken), self.failure_message(broken)

    def failure_message(self, problems: list[str]) -> str:
        self.kept = True
        return "\n".join([*problems, "", *self.diary, f"DEMAND_SEED={self.seed}; all is kept in {self.directory}"])


@pytest.mark.timeout((STORM_SECONDS + 2 * REST_SECONDS) * PATIENCE + 60)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_killed_processes_double_nothing_and_lose_nothing(seed: int) -> None:
    acts = (Site.kill_service, Site.kill_service, Site.kill_script, Site.kill_script, Site.kill_loop, Site.take_machine)
    with Site(seed) as site:
        end = time.monotonic() + STORM_SECONDS
        while time.monotonic() < end:
            site.change_wish()
            for act in site.chance.sample(acts, 3):
                site.watch(site.chance.uniform(0.3, 2.0))
                act(site)
                site.note(act.__name__)
        site.watch(0.0)
        site.come_to_rest(LAST)
        site.come_to_rest({})
