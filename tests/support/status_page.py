"""A status page for a state directory as a loop leaves it, also with hostile names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from provisioner.model import (
    Brake,
    BrakeReason,
    Budget,
    ErrorClass,
    Failure,
    Hosts,
    Limits,
    LossCause,
    Memory,
    Moment,
    Orphans,
    PendingReason,
    PoolLimits,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    TemplateLimits,
    Verdict,
    Window,
)
from provisioner.settings.definitions import Server as Readers
from provisioner.state.directory import StateDir
from provisioner.telemetry.authentication import NO_AUTHENTICATION
from provisioner.telemetry.machine_plots import SAMPLE_SECONDS, Samples
from provisioner.telemetry.pool_status import LastingFailure, PoolStatus, StandingRefusal
from provisioner.telemetry.server import Health, Server
from provisioner.telemetry.status_page import StatusPage
from tests.support.stores import add_request
from tests.unit.core import BEFORE, NOW, running, slot

SCRIPT = "<script>document.title='owned'</script>"
HOSTILE = {
    "a script": SCRIPT,
    "an attribute": "\"><img src=x onerror=\"document.title='owned'\">'",
    "a template": "{{ 7 * 7 }}{% raw %}",
    "right to left": "‮אבג\u202etxt.exe",
    "four kilobytes": "W" * 4096,
    "emoji": "🦊👩‍👩‍👧‍👦\x00\x1b[2J\ud800",
    "a path": "../../etc/passwd?x=1#y&amp;",
}
"""Values that a name or sentence could have if it comes from an untrusted source."""

TIDY = "gke-main"


def grid(word: str = TIDY) -> tuple[Memory, PoolStatus]:
    """Return the memory and pool status of a grid with every kind of trouble. ``word`` is in every field that can have
    free text."""
    failure = Failure(ErrorClass.STOCKOUT, f"no room: {word}")
    id_ = "aaaaaaaaaa" if word == TIDY else word[:4096]
    slots = (
        running(0, pool=word, ip=word, request="aaaaaaaaaa"),
        slot(1, pool=word, failure=failure),
        slot(2, Verdict.FAILED, pool=word, failure=failure),
        running(3, pool=word, is_set_aside=True),
        running(4, Verdict.RETURNED, pool=word, is_stuck=True),
        running(5, Verdict.LOST, pool=word, failure=failure, cause=LossCause.NODE, closed_at=NOW, is_gone=True),
    )
    requests = [
        RequestRecord(
            id_, word, 9, BEFORE, BEFORE + 3600, {one.number: one for one in slots}, message=word, rc_account=word
        ),
        RequestRecord("bbbbbbbbbb", word, 1, BEFORE, BEFORE + 3600, {}, ended=RequestStatus.COMPLETE, ended_at=NOW),
    ]
    memory = Memory(
        "demoinst",
        generation=1,
        written=Moment(NOW, time.time()),
        requests={one.id: one for one in requests},
        returns={"ret-aaaaaaaaaa": ReturnRecord("ret-aaaaaaaaaa", (word,), BEFORE, BEFORE + 3600)},
        windows={(word, word): Window(2, level=1, blocked_at=BEFORE, retry_at=NOW + 60, failure=failure)},
        orphans=Orphans({word: NOW}),
        hosts=Hosts({word: 0.0}),
        brake=Brake(BrakeReason.TOO_MANY_ORPHANS, BEFORE, word, word),
    )
    allowed = Limits(
        "hf", {word: PoolLimits(word, where=word, price_per_hour=1.5)}, {word: TemplateLimits(word, (word,), 500)}
    )
    pool_status = PoolStatus(
        pools={word: [word]},
        problem=LastingFailure(0.0, word),
        configuration=LastingFailure(0.0, word),
        refused=[StandingRefusal(word, "create", word, 0.0, word)],
        paused=[word],
        orphans={word: [word]},
        limits=replace(allowed, budget=Budget(per_hour=0.5, currency=word)),
    )
    return memory, pool_status


def leave(state: StateDir, memory: Memory, pool_status: PoolStatus) -> None:
    """Write the files that a loop leaves, except memory.json. ``memory`` may have texts that no file can store, so it
    is not written."""
    add_request(state, "T", 1, created_wall=0.0, create_for="demoinst")
    state.pool_status.write(asdict(pool_status))
    for word in pool_status.pools:
        source = {"wanted": {word: 3}, "read_at": 1e9, "problem": word, "failures": 2, "unfit": {word: 1}}
        numbers = {"wanted": 3, "asked": 2, "running": 1, "idle": 0}
        report = {
            "at": 0.0,
            "problem": word,
            "templates": {word: numbers},
            "sources": {word: source},
            "reasons": [word],
        }
        state.write_demand(report)
    state.heartbeat.touch()


def hours(memory: Memory, count: int = 120) -> Samples:
    """Return one sample for each of the last ``count`` minutes."""
    samples = Samples()
    key = next(iter(memory.windows), ("", ""))
    for number in range(count):
        deferred = {(*key, PendingReason.BACKOFF): number % 17}
        samples.add(replace(memory), deferred, time.time() - SAMPLE_SECONDS * (count - number))
    return samples


def page(directory: Path, memory: Memory, pool_status: PoolStatus) -> StatusPage:
    """Return the status page of a loop with this memory and pool status."""
    state = StateDir(directory)
    leave(state, memory, pool_status)
    return StatusPage(state, lambda: memory, hours(memory))


@contextmanager
def served(shown: StatusPage, files: Readers = NO_AUTHENTICATION, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """Serve the status page, and yield its address."""
    health = Health(True, True, "fine, says gke-main")
    server = Server(listen, CollectorRegistry(), lambda: health, dict, shown.respond, files)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
