"""The disturbances of the chaos test. Each is a small function whose name is written to the diary of the run. The seed
determines the order and the times of the disturbances before the run begins."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.backends.gke.own_pods import ID_LABEL
from provisioner.lab.cloud.cloud import MODES
from tests.chaos.answer_checks import STILL_WELL, Ledger, of_ours
from tests.chaos.arena import GROUP, NAMESPACE, ZONE, Arena
from tests.chaos.hf import Accident, HostFactory
from tests.support.hostfactory.provider import COMMANDS

EVERY = 1.2
"""Seconds between two disturbances."""
WEATHER_EVERY = 3.0
"""Seconds after which other faults of the cloud replace the present ones."""
AT_ONCE = 3
"""Number of faults that are in force at the same time."""
CALM = 4.0
"""Seconds without disturbances at the beginning, in which HF gets its first machines."""

PODS_ALONE = rf"pods\..*|{NAMESPACE}(/.*)?"
"""A target that matches no group."""

SECONDS: dict[str, float] = {
    "abandoned": 1.0,
    "deleted": 1.0,
    "event_late": 2.0,
    "false_start": 1.0,
    "hang": 3.0,
    "list_lag": 4.0,
    "no_ip": 2.0,
    "preemption": 1.0,
    "recreated": 1.0,
    "slow_start": 4.0,
    "stopped": 1.0,
    "watch_cut": 0.5,
}
"""``params.seconds`` of the faults whose default is longer than a run."""


@dataclass
class Stage:
    """The parts of the world that disturbances change."""

    arena: Arena
    hf: HostFactory
    ledger: Ledger
    old: dict[str, Path]
    """Copies of state files that were put aside."""
    foreigners: dict[str, str]
    """The names of machines that others made beside ours, and the place of each."""
    faults: list[dict[str, Any]]
    """The faults that are in force now."""


Act = Callable[[Stage, random.Random], str]
"""A function that carries out a disturbance and returns a line about it."""


# --- processes --------------------------------------------------------------------------------------------------------


def loop_is_killed(stage: Stage, chance: random.Random) -> str:
    loops = stage.arena.living()
    for loop in loops[: chance.randint(1, 2)]:
        loop.kill()
        loop.wait()
    return f"{len(loops)} lived"


def loop_is_stopped_for_a_while(stage: Stage, chance: random.Random) -> str:
    seconds = chance.choice((1.0, 1.0, 3.0)) * chance.uniform(0.3, 2.0)
    for loop in stage.arena.living()[:1]:
        stage.arena.signal_loop(loop, signal.SIGSTOP)
        threading.Timer(seconds, stage.arena.signal_loop, (loop, signal.SIGCONT)).start()
    return f"{seconds:.1f} s"


def loop_is_ended_by_its_supervisor(stage: Stage, chance: random.Random) -> str:
    for loop in stage.arena.living()[-1:]:
        stage.arena.signal_loop(loop, signal.SIGTERM)
    return ""


def second_loop_begins(stage: Stage, chance: random.Random) -> str:
    if len(stage.arena.living()) < 3:
        stage.arena.begin_loop()
    return f"{len(stage.arena.living())} live"


def scripts_are_killed(stage: Stage, chance: random.Random) -> str:
    scripts = chance.choices(COMMANDS, k=chance.randint(2, 5))
    accidents = [Accident(script, signal.SIGKILL, chance.uniform(0.0, 0.25)) for script in scripts]
    for accident in accidents:
        stage.hf.meets(accident)
    return ", ".join(f"{accident.script} after {accident.after:.3f} s" for accident in accidents)


def script_is_stopped_for_a_while(stage: Stage, chance: random.Random) -> str:
    script = chance.choice(COMMANDS)
    accident = Accident(script, signal.SIGSTOP, chance.uniform(0.0, 0.25), chance.uniform(0.2, 3.0))
    stage.hf.meets(accident)
    return f"{script} after {accident.after:.3f} s for {accident.later:.1f} s"


def hf_restarts_and_forgets(stage: Stage, chance: random.Random) -> str:
    stage.ledger.restarted()
    return ""


# --- the cloud --------------------------------------------------------------------------------------------------------


def machines_are_taken(stage: Stage, chance: random.Random) -> str:
    names = some_of_ours(stage, chance)
    return f"{stage.arena.preempt(names)} of {names}"


def machines_are_deleted_behind_our_back(stage: Stage, chance: random.Random) -> str:
    names = some_of_ours(stage, chance)
    for name in names:
        stage.arena.pods("DELETE", name, {"gracePeriodSeconds": 0})
        stage.arena.compute("DELETE", f"instances/{name}")
    return str(names)


def some_of_ours(stage: Stage, chance: random.Random) -> list[str]:
    """Return the names of up to three of our machines. Record in the ledger that something else takes them away."""
    ours = [one["name"] for one in of_ours(stage.arena.cloud())]
    names = chance.sample(sorted(ours), min(len(ours), chance.randint(1, 3)))
    stage.ledger.taken.update(names)
    return names


def foreign_machines_appear(stage: Stage, chance: random.Random) -> str:
    letters = f"{chance.randrange(16**10):010x}"
    labels = {ID_LABEL: "another"} if chance.random() < 0.5 else {"app": "another"}
    pod, vm = f"hf-{letters}-000001", f"zz-{letters}"
    spec = {"containers": [{"name": "c", "image": "registry.example.com/another:1"}]}
    metadata = {"name": pod, "labels": labels}
    stage.foreigners |= {pod: NAMESPACE, vm: GROUP}
    stage.arena.pods("POST", document={"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    group = f"instanceGroupManagers/{GROUP}/createInstances"
    stage.arena.compute("POST", group, {"instances": [{"name": vm}]})
    return f"{pod} in {NAMESPACE}, {vm} in {GROUP} of {ZONE}"


# --- files ------------------------------------------------------------------------------------------------------------


def file_is_deleted(stage: Stage, chance: random.Random) -> str:
    return damaged(stage, chance, lambda file: file.unlink(missing_ok=True))


def file_is_cut(stage: Stage, chance: random.Random) -> str:
    def cut(file: Path) -> None:
        content = file.read_bytes()
        aside = file.with_name(f"{file.name}.cut")
        aside.write_bytes(content[: chance.randrange(max(1, len(content)))])
        aside.rename(file)

    return damaged(stage, chance, cut)


def file_is_put_aside(stage: Stage, chance: random.Random) -> str:
    for name in ("memory.json", "status.json"):
        with suppress(FileNotFoundError):
            stage.old[name] = Path(shutil.copy(stage.arena.state / name, stage.arena.directory / f"old-{name}"))
    return ", ".join(stage.old)


def old_file_is_put_back(stage: Stage, chance: random.Random) -> str:
    def put_back(file: Path) -> None:
        if file.name in stage.old:
            aside = file.with_name(f"{file.name}.old")
            shutil.copy(stage.old[file.name], aside)
            aside.rename(file)

    return damaged(stage, chance, put_back)


def damaged(stage: Stage, chance: random.Random, damage: Callable[[Path], None]) -> str:
    """Damage status.json, memory.json or both. In half of the cases, first kill every loop, so that no loop runs
    meanwhile."""
    names = chance.choice([["status.json"], ["memory.json"], ["status.json", "memory.json"]])
    alone = chance.random() < 0.5
    stage.ledger.memory_made_again |= "memory.json" in names
    if alone:
        for loop in stage.arena.living():
            loop.kill()
            loop.wait()
    for name in names:
        with suppress(FileNotFoundError):
            damage(stage.arena.state / name)
    return f"{', '.join(names)} {'without a loop' if alone else 'beside the loop'}"


OFTEN: tuple[Act, ...] = (
    loop_is_stopped_for_a_while,
    second_loop_begins,
    scripts_are_killed,
    script_is_stopped_for_a_while,
    machines_are_taken,
    machines_are_deleted_behind_our_back,
    file_is_put_aside,
)
SELDOM: tuple[Act, ...] = (
    loop_is_killed,
    loop_is_ended_by_its_supervisor,
    foreign_machines_appear,
    hf_restarts_and_forgets,
    file_is_deleted,
    file_is_cut,
    old_file_is_put_back,
)
"""Disturbances that must be rare, because other acts have little effect until the loop runs and the files are whole
again. A loop starts within seconds, and rebuilds a memory once it has seen all pools."""

ACTS = (*OFTEN, *OFTEN, *OFTEN, *SELDOM)


# --- what comes when --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Due:
    """A disturbance that happens ``at`` seconds after the beginning of the run."""

    at: float
    name: str
    act: Act


def faults(modes: list[str], chance: random.Random) -> Act:
    """Return a disturbance that replaces all faults by faults of these kinds."""
    drawn = [
        {"mode": mode, "rate": rate_of(mode, chance), "target": target_of(mode, chance), "params": params_of(mode)}
        for mode in modes
    ]

    def impose(stage: Stage, _: random.Random) -> str:
        stage.faults[:] = drawn
        stage.arena.faults(*drawn)
        return ", ".join(f"{fault['mode']} {fault['rate']}" for fault in drawn)

    return impose


def rate_of(mode: str, chance: random.Random) -> float:
    """Draw the rate of a fault: the probability that it strikes when it could. The rate is higher for faults of
    machines, because there are fewer machines than calls."""
    return round(chance.uniform(0.1, 0.4) if mode in STILL_WELL else chance.uniform(0.4, 0.9), 2)


def target_of(mode: str, chance: random.Random) -> str:
    """Draw the target of the fault. In three of four cases, the fault ``throttled`` hits only pods, because a throttled
    group gets no calls for a minute, which is long for a run."""
    return PODS_ALONE if mode == "throttled" and chance.random() < 0.75 else ".*"


def params_of(mode: str) -> dict[str, Any]:
    return {"seconds": SECONDS[mode]} if mode in SECONDS else {}


def programme(seed: int, seconds: float, kinds: tuple[Act, ...] = ACTS) -> list[Due]:
    """Return all disturbances of a run in the order of their times. The seed draws order and times. Each kind of act
    and each kind of fault comes again and again."""
    chance = random.Random(f"{seed} programme")
    acts, modes = in_turns(chance, kinds), in_turns(chance, tuple(sorted(MODES)))
    due = [
        Due(at, act.__name__.replace("_", " "), act)
        for at, act in zip(times(chance, EVERY, seconds), acts, strict=False)
    ]
    due += [
        Due(at, "faults", faults([next(modes) for _ in range(AT_ONCE)], chance))
        for at in times(chance, WEATHER_EVERY, seconds)
    ]
    return sorted(due, key=lambda one: one.at)


def in_turns(chance: random.Random, things: tuple[Any, ...]) -> Iterator[Any]:
    """Yield all things in a random order, then all of them in another order, and so on."""
    while True:
        yield from chance.sample(things, len(things))


def times(chance: random.Random, every: float, seconds: float) -> Iterator[float]:
    """Yield times that are about ``every`` seconds apart. The first is at the end of the calm beginning."""
    at = CALM
    while at < seconds:
        yield at
        at += chance.uniform(0.5, 1.5) * every


def play(due: list[Due], stage: Stage, seed: int, note: Callable[[str], None], go_on: Callable[[], bool]) -> None:
    """Carry out each disturbance at its time. Each has its own random generator, so that one disturbance does not
    change the next one."""
    began = time.monotonic()
    for number, one in enumerate(due):
        while (pause := one.at - (time.monotonic() - began)) > 0:
            time.sleep(min(pause, 0.2))
            if not go_on():
                return
        detail = one.act(stage, random.Random(f"{seed} {number}"))
        note(f"{one.name}: {detail}" if detail else one.name)
