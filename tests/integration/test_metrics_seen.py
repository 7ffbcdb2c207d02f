"""Every metric in the situation that it is made for, with the real loop, the embedded cloud and the scripts. The
numbers must equal the cloud's and HF's numbers.

Each test names the metrics that it shows. It fails if a metric has another value than expected. The suite fails if a
metric is named by no test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from google.cloud import pubsub_v1
from prometheus_client import CollectorRegistry

from provisioner.backends import pubsub_events
from provisioner.commands import cli
from provisioner.files.version import full_version
from provisioner.hostfactory.script_calls import HostFactory, ScriptFailed
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import Verdict
from provisioner.names import NO_TEMPLATE
from provisioner.telemetry.metrics import EventMetrics, Metrics
from tests.conformance.stage import (
    PROJECT,
    ZONE,
    Case,
    Grid,
    Instance,
    loop_time,
    stage,
    template,
)
from tests.support.clients.scrape import PREFIX, Scrape
from tests.support.parts import alter
from tests.support.waiting import PATIENCE, until

Scenario = Callable[..., None]
Scraping = Callable[[Instance], Scrape]
SHOWN: dict[Scenario, set[str]] = {}
"""The metrics that each test shows, without ``hf_provisioner_`` and ``_total``."""

POOL, TEMPLATE = "gke-main", "T2"


def shows(*metrics: str) -> Callable[[Scenario], Scenario]:
    """Record the metrics that the test shows."""

    def mark(test: Scenario) -> Scenario:
        SHOWN.setdefault(test, set()).update(metrics)
        return test

    return mark


@pytest.fixture(scope="module")
def cloud() -> Iterator[Simulator]:
    with stage() as running:
        yield running


@pytest.fixture
def scrape(request: pytest.FixtureRequest) -> Iterator[Scraping]:
    """Scrape the metrics of a grid; at the end each metric that it exports must have been checked."""
    made: list[Scrape] = []

    def of(hf: Instance) -> Scrape:
        made.append(Scrape(lambda: hf.url))
        return made[-1]

    yield of
    assert SHOWN[request.function] - {name for one in made for name in one.found} == set()


def grid(directory: Path, cloud: Simulator, number: int, *, pool: Mapping[str, Any] = {}, **settings: Any) -> Grid:
    """Return a provider instance on a namespace of its own; its loop runs unless settings say ``loop=False``."""
    return Grid(directory, cloud, Case(number, "", lambda _: None, settings.pop("loop", True), settings, pool))


def command(hf: Grid, *words: str) -> None:
    """Run ``provisioner`` as an operator of this instance."""
    environment = {**os.environ, **hf.environment}
    subprocess.run([sys.executable, "-m", "provisioner", *words], env=environment, timeout=60 * PATIENCE, check=True)


def pod(hf: Grid, name: str, rest: str = "") -> str:
    """Return the address of a pod in the simulated API; without a name, the address of the list of pods."""
    return f"{hf.simulator.kubernetes}/api/v1/namespaces/{hf.place}/pods/{name}{rest}".rstrip("/")


def test_every_metric_is_shown_by_a_test() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    EventMetrics(registry)
    exported = {family.name.removeprefix(PREFIX) for family in registry.collect() if family.name.startswith(PREFIX)}

    assert exported == set().union(*SHOWN.values())


# --- machines come, are paid for, and go ------------------------------------------------------------------------------


@shows("build_info", "active", "cycles", "cycle_duration_seconds", "last_success_timestamp_seconds", "requests")
@shows("observation_timestamp_seconds", "machines_desired", "machines", "window", "creates", "store_bytes", "wakeups")
@shows("machine_startup_seconds", "backend_call_seconds", "config_ok")
def test_machines_that_are_asked_for(tmp_path: Path, cloud: Simulator, scrape: Scraping) -> None:
    began = time.time()
    with grid(tmp_path, cloud, 1, loop=False, pool={"initial_window": 2}) as hf:
        hf.write_templates(template(TEMPLATE, maxNumber=-1))
        hf.start_loop()
        seen = scrape(hf)
        hf.cycles()
        seen.becomes(2, "window", pool=POOL)
        asked = time.monotonic()
        hf.complete(3)
        ended = time.monotonic()

        running = len(hf.cloud("running"))
        assert running == 3
        seen.becomes(running, "machines", pool=POOL, template=TEMPLATE, phase="running")
        seen.becomes(running, "machines_desired", pool=POOL, template=TEMPLATE)
        seen.becomes(running, "creates_total", pool=POOL, result="ok")
        seen.becomes(running, "machine_startup_seconds_count", pool=POOL, template=TEMPLATE)
        seen.becomes(lambda took: 0 < took <= running * (ended - asked), "machine_startup_seconds_sum", pool=POOL)
        seen.becomes(2 + 2 * running, "window", pool=POOL)
        seen.becomes(1, "requests", kind="request", status="complete")
        seen.becomes(lambda calls: 1 <= calls <= running, "backend_call_seconds_count", pool=POOL, operation="create")

        seen.becomes(1, "build_info", version=full_version())
        seen.becomes(1, "active", provisioner="demo")
        seen.becomes(1, "config_ok")
        before = requests.get(f"{hf.url}/status", timeout=10).json()["cycle"]
        cycles = seen.becomes(lambda cycles: cycles >= before, "cycles_total")
        timed = seen.becomes(lambda timed: timed >= cycles, "cycle_duration_seconds_count")
        assert timed <= requests.get(f"{hf.url}/status", timeout=10).json()["cycle"]
        assert seen.value("cycles_total", result="ok") > 0
        seen.becomes(lambda at: began <= at <= time.time(), "last_success_timestamp_seconds")
        seen.becomes(lambda at: began <= at <= time.time(), "observation_timestamp_seconds", pool=POOL)
        for file in ("intent.json", "memory.json", "status.json", "journal.jsonl"):
            seen.becomes(lambda size, file=file: size == (hf.work / file).stat().st_size, "store_bytes", file=file)  # type: ignore[misc]
        seen.becomes(lambda woken: woken >= 1, "wakeups_total", source="intent")
        seen.becomes(lambda woken: woken >= 1, "wakeups_total", source="watch")
        quiet = seen.value("wakeups_total", source="timer")
        seen.becomes(lambda woken: woken > quiet, "wakeups_total", source="timer")


@shows("budget", "cost_per_hour", "cost_this_month", "machine_seconds", "machines_deferred")
def test_machines_that_cost(tmp_path: Path, cloud: Simulator, scrape: Scraping) -> None:
    price, budget = {"price_per_hour": 2.0}, {"per_hour": 7.0, "per_month": 10_000.0}
    with loop_time() as ahead, grid(tmp_path, cloud, 2, pool=price, budget=budget) as hf:
        seen = scrape(hf)
        began = time.time()
        assert hf.shows(hf.request(TEMPLATE, 5), *["succeed"] * 3)["status"] == "running"
        running = len(hf.cloud("running"))
        assert running == 3, "the fourth would cost 8 an hour"
        seen.becomes(2, "machines_deferred", pool=POOL, template=TEMPLATE, reason="budget")
        ahead.seconds += 1800
        hf.cycles(3)
        ahead.seconds += 60  # so often they are added up
        earliest, latest = began, time.time()
        seen.becomes(7, "budget", per="hour")
        seen.becomes(10_000, "budget", per="month")
        seen.becomes(2.0 * running, "cost_per_hour")
        used = seen.becomes(lambda seconds: seconds >= running * 1860, "machine_seconds_total", pool=POOL)
        assert used <= running * (1860 + time.time() - earliest)
        month = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
        least = 2.0 * running * min(1800, latest - month) / 3600
        cost = seen.becomes(lambda cost: cost >= least - 0.001, "cost_this_month")
        assert cost <= 2.0 * used / 3600 + 0.01
        costs = requests.get(f"{hf.url}/status.json", timeout=10).json()["budget"]
        assert (costs["per_hour"]["used"], costs["per_hour"]["limit"], costs["held_back"]) == (2.0 * running, 7.0, 2)
        assert costs["per_hour"]["reached"]
        assert costs["since"]


@shows("deletes", "machine_shutdown_seconds", "machines_lost", "requests", "store_lock_wait_seconds", "machines_stuck")
def test_machines_that_go(tmp_path: Path, cloud: Simulator, scrape: Scraping) -> None:
    """The cloud preempts one machine, HF returns a second, and a third does not end when HF returns it. A return
    request leaves the state once its end was reported to HF."""
    settings = {"retention_hours": 0, "loop": False}
    with loop_time() as ahead, grid(tmp_path, cloud, 3, pool={"early_loss_seconds": 0}, **settings) as hf:
        (hf.conf / "pod.yaml").write_text(SPOT_POD)
        hf.start_loop()
        seen = scrape(hf)
        returned, preempted, stuck = hf.complete(3)
        cloud.preempt(preempted)
        seen.becomes(1, "machines_lost_total", pool=POOL, template=TEMPLATE, cause="preempted")
        seen.becomes(1, "machines_lost_total")

        asked = time.monotonic()
        gone = hf.return_machines(returned)
        seen.becomes(
            1, "requests", kind="return", status="complete"
        )  # until it is reported to HF, then it leaves the files
        assert hf.ended(gone)["status"] == "complete"
        seen.becomes(1, "deletes_total", pool=POOL, reason="returned", result="ok")
        seen.becomes(1, "machine_shutdown_seconds_count", pool=POOL)
        seen.becomes(lambda took: 0 < took <= time.monotonic() - asked, "machine_shutdown_seconds_sum", pool=POOL)
        running = len(hf.cloud("running"))
        seen.becomes(running, "machines", pool=POOL, template=TEMPLATE, phase="running")

        hf.fault("stuck")
        return_id = hf.return_machines(stuck)
        hf.until_cloud(lambda ending: ending == [stuck], "stopping")
        seen.becomes(1, "machines", pool=POOL, template=TEMPLATE, phase="stopping")
        assert seen.value("machines_stuck", pool=POOL) == 0
        seen.becomes(1, "machines_stuck", pool=POOL, meanwhile=ahead.go_on)
        hf.faults()
        assert requests.delete(pod(hf, stuck), json={"gracePeriodSeconds": 0}, timeout=10).ok
        assert hf.ended(return_id)["status"] == "complete"
        seen.becomes(0, "machines_stuck", pool=POOL)
        seen.becomes(lambda waits: waits >= 1, "store_lock_wait_seconds_count")
        seen.becomes(lambda left: left == hf.recorded(), "requests")


@shows("machines_down")
def test_a_machine_that_crashes_again_and_again(tmp_path: Path, cloud: Simulator, scrape: Scraping) -> None:
    with grid(tmp_path, cloud, 4, loop=False) as hf:
        (hf.conf / "pod.yaml").write_text("restartPolicy: Always\ncontainers: [{name: main, image: busybox}]\n")
        hf.fault("crash", params={"seconds": 1})
        hf.start_loop()
        seen = scrape(hf)
        hf.complete(1)
        seen.becomes(1, "machines_down", pool=POOL)


@shows("machines_queued", "oldest_queued_timestamp_seconds")
def test_machines_that_a_queue_holds(tmp_path: Path, cloud: Simulator, scrape: Scraping) -> None:
    with grid(tmp_path, cloud, 17, loop=False) as hf:
        gate = "schedulingGates: [{name: kueue.x-k8s.io/admission}]\n"
        (hf.conf / "pod.yaml").write_text(gate + "containers: [{name: main, image: busybox}]\n")
        hf.start_loop()
        seen = scrape(hf)
        began = time.time()
        id_ = hf.request(TEMPLATE, 2)
        seen.becomes(2, "machines_queued", pool=POOL)
        seen.becomes(lambda at: began - 1 <= at <= time.time() + 1, "oldest_queued_timestamp_seconds", pool=POOL)
        (answer,) = hf.status(id_)
        assert {one["message"].partition(" since ")[0] for one in answer["machines"]} == {f"queued in {POOL}"}


SPOT_POD = "nodeSelector: {cloud.google.com/gke-spot: 'true'}\ncontainers: [{name: main, image: busybox}]\n"


# --- places that refuse -----------------------------------------------------------------------------------------------


@shows("refusals", "machines_refused", "slots_failed", "backend_errors", "creates", "machines_deferred", "cycles")
@shows("oldest_unmet_timestamp_seconds", "hold")
def test_places_that_refuse(tmp_path: Path, cloud: Simulator, scrape: Scraping) -> None:
    """Two pools of one loop refuse machines for different reasons. One request ends after three tries of each machine;
    the other one keeps waiting."""
    places = {"full": "case-10", "image": "case-11"}
    pools = {
        name: {"kind": "gke", "pod_spec": "pod.yaml", "observe_seconds": 0.05, "namespace": place}
        for name, place in places.items()
    }
    settings = {"templates": {"full": {"tries": 0}, "image": {"tries": 2}}, "backoff": {"first_seconds": 1}}
    with grid(tmp_path, cloud, 9, loop=False, pools=pools, **settings) as hf:
        hf.write_templates(*(template(name, pools=[name], maxNumber=-1) for name in places))
        hf.faults(Fault("quota", places["full"]), Fault("invalid", places["image"]))
        hf.start_loop()
        seen = scrape(hf)
        began = time.time()
        ids = {name: hf.request(name, 2) for name in places}
        asked = time.time()
        for name, error, other in (("full", "quota", "invalid"), ("image", "invalid", "quota")):
            seen.becomes(lambda count: count >= 1, "refusals_total", pool=name, error=error)
            errors = {"pool": name, "operation": "create"}
            seen.becomes(lambda count: count >= 1, "backend_errors_total", **errors, error=error)
            assert seen.has_no("refusals_total", pool=name, error=other)
            assert seen.value("creates_total", pool=name, result="ok") == 0
        seen.becomes(2, "machines_refused", pool="full", template="full", error="quota")
        seen.becomes(lambda count: count >= 1, "machines_deferred", pool="full", template="full", reason="backoff")
        seen.becomes(lambda at: began - 1 <= at <= asked + 1, "oldest_unmet_timestamp_seconds", template="full")
        seen.becomes(lambda cycles: cycles >= 1, "cycles_total", result="partial")

        assert hf.ended(ids["image"])["status"] == "complete_with_error"
        seen.becomes(2 * (2 + 1), "slots_failed_total", pool="image", template="image", error="invalid")
        seen.becomes(4, "creates_total", pool="image", result="failed")
        assert all(at != at for at in seen.series("oldest_unmet_timestamp_seconds", template="image")), "it has ended"

        command(hf, "pause", "full", "--reason", "a test")
        seen.becomes(1, "hold", hold="pause", pool="full")
        seen.becomes(2, "machines_deferred", pool="full", template="full", reason="paused")


# --- operators --------------------------------------------------------------------------------------------------------


@shows("config_differs")
def test_a_file_that_another_host_reads_otherwise(
    tmp_path: Path,
    cloud: Simulator,
    scrape: Scraping,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """HostFactory's host and the loop's host each have their own copy of the files. If a file is changed on one host,
    the difference is reported until the other host has the same file."""
    with grid(tmp_path, cloud, 34) as hf:
        seen = scrape(hf)
        copy = shutil.copytree(hf.conf, tmp_path / "of-the-host")
        theirs = copy / hf.templates_file.name
        host = HostFactory({**hf.environment, "HF_PROVIDER_CONFDIR": str(copy)})
        for name, value in host.environment.items():
            monkeypatch.setenv(name, value)

        def newer() -> tuple[int, list[str | None]]:
            """Return two things: the exit code of ``status``, and the side (scripts or loop) whose copy of the
            templates ``status`` calls newer."""
            capsys.readouterr()
            code = cli.run(["status", "-o", "json"])
            differing = json.loads(capsys.readouterr().out)["configuration_differs"]
            return code, [one["newer"] for one in differing if one["file"] == "templates"]

        hf.complete(1)
        host.templates()
        assert (newer(), hf.metric(f"{PREFIX}config_differs")) == ((0, []), 0)

        change(theirs, 77)
        host.templates()
        seen.becomes(1, "config_differs", file="templates")
        assert newer() == (1, ["scripts"])
        assert cli.run(["check"]) == 0
        assert f"{theirs}: the loop read another version of this file" in capsys.readouterr().out

        change(hf.templates_file, 77)
        until(lambda: seen.has_no("config_differs"), 30, what="it was brought to the loop")
        assert newer() == (0, [])


def change(file: Path, number: int) -> None:
    """Change the maxNumber of the first template."""
    document = json.loads(file.read_text())
    document["templates"][0]["maxNumber"] = number
    file.with_suffix(".new").write_text(json.dumps(document))
    file.with_suffix(".new").replace(file)


@shows("brake_engaged", "deletes", "config_ok", "cycles", "last_success_timestamp_seconds", "operator_needed")
def test_files_and_machines_that_need_an_operator(tmp_path: Path, cloud: Simulator, scrape: Scraping) -> None:
    with loop_time() as ahead, grid(tmp_path, cloud, 30) as hf:
        seen = scrape(hf)
        (model,) = hf.complete(1)
        hf.configure(nonsense=1)
        seen.becomes(0, "config_ok")
        seen.becomes(1, "operator_needed", alarm="CONFIGURATION REFUSED")
        hf.configure()
        seen.becomes(1, "config_ok")

        unknown_machines = strange_pods(hf, model, 1)
        seen.becomes(1, "machines", pool=POOL, template=NO_TEMPLATE)  # its time counts from here
        hf.cycles(3)
        assert seen.value("deletes_total") == 0, "orphans go slowly"
        ahead.seconds += 900
        seen.becomes(1, "deletes_total", pool=POOL, reason="orphaned", result="ok")
        hf.until_cloud(lambda left: left == [model])

        unknown_machines = strange_pods(hf, model, 6)
        seen.becomes(6, "machines", pool=POOL, template=NO_TEMPLATE)
        seen.becomes(1, "brake_engaged", pool=POOL, reason="identity_conflict")
        ahead.seconds += 900
        hf.cycles(3)
        assert seen.value("deletes_total", reason="orphaned") == 1, "the brake holds"
        assert set(hf.cloud()) == {model, *unknown_machines}
        command(hf, "recover", "--release-brake")
        seen.becomes(0, "brake_engaged")
        ahead.seconds += 900
        seen.becomes(7, "deletes_total", pool=POOL, reason="orphaned", result="ok")

        (hf.work / "intent.json").rename(tmp_path / "aside")
        seen.becomes(lambda failed: failed >= 2, "cycles_total", result="failed")
        seen.becomes(1, "brake_engaged", pool="", reason="intent_lost")
        stood = seen.value("last_success_timestamp_seconds")
        failed = seen.value("cycles_total", result="failed")
        seen.becomes(lambda more: more > failed, "cycles_total", result="failed")
        seen.becomes(stood, "last_success_timestamp_seconds")


def strange_pods(hf: Grid, model: str, count: int) -> list[str]:
    """Make pods that look like one of ours, but belong to an unknown request."""
    labels = requests.get(pod(hf, model), timeout=10).json()["metadata"]["labels"]
    made = []
    for number in range(count):
        request, slot = uuid.uuid4().hex[:10], f"{number:06d}"
        own = labels | {"hf-provisioner/request": request, "hf-provisioner/slot": slot}
        made.append(f"hf-{request}-{slot}")
        document = {"metadata": {"name": made[-1], "labels": own}, "spec": SPEC}
        answer = requests.post(pod(hf, ""), json=document, timeout=10)
        assert answer.ok, answer.text
    return made


SPEC = {"containers": [{"name": "main", "image": "busybox"}]}


@shows("script_calls_refused", "hostfactory_last_call_timestamp_seconds")
def test_calls_of_hostfactory(tmp_path: Path, cloud: Simulator, scrape: Scraping) -> None:
    with grid(tmp_path, cloud, 32) as hf:
        seen = scrape(hf)
        hf.cycles()
        assert seen.series("script_calls_refused_total") == [0.0] * 5
        assert seen.has_no("hostfactory_last_call_timestamp_seconds")
        wrong = {**hf.environment, "HF_PROVIDER_NAME": "other"}
        for _ in range(2):
            with pytest.raises(ScriptFailed, match="ended with 1"):
                HostFactory(wrong).request(TEMPLATE, 1)
        seen.becomes(2, "script_calls_refused_total", script="requestMachines")
        hf.stop_loop()
        hf.start_loop()
        hf.cycles()
        assert seen.value("script_calls_refused_total", script="requestMachines") == 2, "never lower, nor counted again"
        began = time.time()
        hf.reclaimed()
        name, one = "hostfactory_last_call_timestamp_seconds", hf.request(TEMPLATE, 1)
        listed = seen.becomes(lambda at: at > began - 1, name, script="getReturnRequests")
        hf.status(one)
        polled = seen.becomes(lambda at: at > began - 1, name, script="getRequestStatus")
        assert max(listed, polled) < time.time() + 1


@shows("server_rejections")
def test_requests_and_logins_that_are_refused(tmp_path: Path, cloud: Simulator, scrape: Scraping) -> None:
    with grid(tmp_path, cloud, 33) as hf:
        seen = scrape(hf)
        hf.cycles()
        for _ in range(2):
            assert requests.post(f"{hf.url}/status", timeout=10).status_code == 405
        seen.becomes(2, "server_rejections_total", reason="request")
    token = tmp_path / "token"
    token.write_text("right")
    with grid(tmp_path / "with token", cloud, 34, server={"token_file": str(token)}) as hf:
        hf.cycles()
        right = {"Authorization": "Bearer right"}
        text = requests.get(f"{hf.url}/metrics", headers=right, timeout=10).text
        assert 'hf_provisioner_server_rejections_total{reason="token"} 0.0' in text
        assert 'hf_provisioner_server_rejections_total{reason="rate"} 0.0' in text
        refused = [requests.get(hf.url, headers={"Authorization": "Bearer x"}, timeout=10) for _ in range(3)]
        assert [one.status_code for one in refused] == [401] * 3
        text = requests.get(f"{hf.url}/metrics", headers=right, timeout=10).text
        assert 'hf_provisioner_server_rejections_total{reason="token"} 3.0' in text


@shows("slots_set_aside", "machines_unlisted", "active")
def test_machines_that_are_protected_or_not_listed(
    tmp_path: Path, cloud: Simulator, scrape: Scraping, monkeypatch: pytest.MonkeyPatch
) -> None:
    with grid(tmp_path, cloud, 31) as hf:
        seen = scrape(hf)
        machines = hf.complete(3)
        hf.reclaimed()
        hf.cycles()
        hf.stop_loop()
        memory = hf.state.memory.read()
        hf.state.memory.write(alter(memory, unlisted=dict.fromkeys(machines[:2], memory.written.time - 86_400)))
        hf.start_loop()
        until(lambda: answers(hf), 30, what="the loop answers")
        assert hf.reclaimed() == {}
        seen.becomes(2, "machines_unlisted", pool=POOL)
        hf.reclaimed(machines[0])
        seen.becomes(1, "machines_unlisted", pool=POOL)

        seen.becomes(0, "slots_set_aside")
        monkeypatch.setattr(
            "provisioner.planning.core.draft.TRANSITIONS", {verdict: frozenset() for verdict in Verdict}
        )
        hf.return_machines(machines[2])
        seen.becomes(1, "slots_set_aside")
        assert hf.cloud("running") == sorted(machines)

        with Instance(tmp_path, cloud, hf.place) as standby:
            standby.start_loop()
            beside = scrape(standby)
            until(lambda: answers(standby), 30, what="the standby answers")
            beside.becomes(0, "active", provisioner="demo")
            seen.becomes(1, "active", provisioner="demo")
            hf.stop_loop()
            beside.becomes(1, "active", provisioner="demo")


def answers(instance: Instance) -> bool:
    """Return True if the loop's HTTP server listens, so that its metrics can be scraped."""
    try:
        return bool(instance.url)
    except RuntimeError:
        return False


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.pubsub
@shows("events", "event_stream_breaks", "wakeups")
def test_messages_of_every_worth(
    pubsub: str, tmp_path: Path, scrape: Scraping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use Google's emulator of Pub/Sub. The subscription is missing at first. Then five messages arrive, one for each
    value of the label ``worth``."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub)
    monkeypatch.setattr(pubsub_events, "FIRST_PAUSE", 0.1)
    word = f"seen-{uuid.uuid4().hex[:12]}"
    topic, subscription = (f"projects/{PROJECT}/{kind}/{word}" for kind in ("topics", "subscriptions"))
    with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
        publisher.create_topic(name=topic)
        with stage() as cloud, grid(tmp_path, cloud, 32, events={"project": PROJECT, "subscription": word}) as hf:
            seen = scrape(hf)
            (machine,) = hf.complete(1)
            seen.becomes(lambda breaks: breaks >= 1, "event_stream_breaks_total")
            seen.becomes(0, "events_total")
            subscriber.create_subscription(request={"name": subscription, "topic": topic})
            notice = audit(machine, "compute.instances.preempted")
            wake_up = audit(machine, "v1.compute.instances.stop")
            for message in (notice, notice, wake_up, audit("vm-of-others", "compute.instances.preempted"), b"no JSON"):
                publisher.publish(topic, message).result(20)
            for worth in ("notice", "repeated", "wake_up", "foreign", "malformed"):
                seen.becomes(1, "events_total", worth=worth)
            seen.becomes(2, "wakeups_total", source="pubsub")


def audit(machine: str, method: str) -> bytes:
    """Return an entry of the audit log."""
    resource = f"projects/{PROJECT}/zones/{ZONE}/instances/{machine}"
    return json.dumps(
        {
            "protoPayload": {"methodName": method, "resourceName": resource},
            "insertId": f"{machine} {method}",
            "timestamp": datetime.now(UTC).isoformat(),
        }
    ).encode()
