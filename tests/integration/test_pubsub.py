"""The event stream against Google's own Pub/Sub emulator. Hints arrive, every message is acknowledged, and the stream
recovers after a break."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests
import yaml
from google.cloud import pubsub_v1

from provisioner.backends import pubsub_events
from provisioner.backends.pubsub_events import EventStream, InstanceEvent, Judged, Worth
from provisioner.backends.pubsub_subscription import subscription_findings
from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Serving, Simulator
from provisioner.state.directory import StateDir
from tests.support.checks import callers, rights
from tests.support.hostfactory.sites import small_site, template
from tests.support.ports import free_ports
from tests.support.stores import add_request
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.pubsub

PROJECT = "demo-project"
NAME = "hf-abcde01234-000007"
QUICK = {"call": 0, "operation": 0, "schedule": 0, "boot": 0.1, "audit": 0.1}


@pytest.fixture
def place(pubsub: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub)
    made = Place()
    yield made
    made.close()


class Place:
    """A topic of its own for each test, and the name of a subscription."""

    def __init__(self) -> None:
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.name = name
        self.topic = f"projects/{PROJECT}/topics/{name}"
        self.subscription = f"projects/{PROJECT}/subscriptions/{name}"
        self._publisher = pubsub_v1.PublisherClient()
        self._subscriber = pubsub_v1.SubscriberClient()
        self._publisher.create_topic(name=self.topic)

    def subscribe(self) -> None:
        self._subscriber.create_subscription(
            request={"name": self.subscription, "topic": self.topic, "ack_deadline_seconds": 10}
        )

    def unsubscribe(self) -> None:
        self._subscriber.delete_subscription(subscription=self.subscription)

    def publish(self, *messages: bytes) -> None:
        for sent in [self._publisher.publish(self.topic, message) for message in messages]:
            sent.result(20)

    def close(self) -> None:
        self._publisher.stop()
        self._publisher.transport.close()
        self._subscriber.close()


def entry(number: int, name: str = NAME) -> bytes:
    payload = {
        "methodName": "compute.instances.preempted",
        "resourceName": f"projects/{PROJECT}/zones/us-central1-a/instances/{name}",
    }
    now = datetime.now(UTC).isoformat()
    document = {"protoPayload": payload, "insertId": f"id-{number}", "severity": "INFO", "timestamp": now}
    return json.dumps(document).encode()


class Listener:
    """A stream, and the messages that it took."""

    def __init__(self, place: Place) -> None:
        self.taken: list[Judged] = []
        self.breaks: list[str] = []
        self._stream = EventStream(PROJECT, place.name, prefix="hf", taken=self.taken.append, broke=self.breaks.append)

    def __enter__(self) -> Listener:
        self._stream.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stream.close()

    def news(self) -> list[str]:
        """Return the insert ids of the new messages about our machines."""
        return sorted(message.news.key.partition("/")[0] for message in self.taken if message.news)


def test_each_message_is_taken_and_judged(place: Place) -> None:
    place.subscribe()
    with Listener(place) as listener:
        place.publish(entry(1), b"not json", entry(1), entry(2, "another-vm"), entry(3))
        until(lambda: len(listener.taken) == 5, 20, what="five messages")
    assert listener.news() == ["id-1", "id-3"]
    worths = Counter(message.worth for message in listener.taken)
    assert worths == {Worth.NOTICE: 2, Worth.REPEATED: 1, Worth.FOREIGN: 1, Worth.MALFORMED: 1}
    hint = next(message.news for message in listener.taken if message.news)
    assert (hint.instance, hint.event) == (NAME, InstanceEvent.PREEMPTED)
    assert hint.grace == pytest.approx(30.0, abs=10.0), "published seconds after it happened"
    assert listener.breaks == []


def test_the_role_of_a_subscription_is_what_google_s_client_calls(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: set[str] = set()
    monkeypatch.setattr(callers, "CALLS", made)
    place.subscribe()
    assert subscription_findings(PROJECT, place.name, 20) == []
    with Listener(place) as listener:
        place.publish(entry(1))
        until(lambda: listener.taken, 20, what="a message")
        until(lambda: "/google.pubsub.v1.Subscriber/Acknowledge" in made, 20, what="it is acknowledged")
    role = yaml.safe_load((rights.ROLES / "events.yaml").read_text())["includedPermissions"]
    assert {rights.needed(call) for call in made} - {""} == {*role}


def test_every_message_is_acknowledged_whatever_it_holds(place: Place) -> None:
    """Google's library stops receiving at MAX_MESSAGES unacknowledged messages. The test publishes more messages, which
    all arrive only if each message is acknowledged."""
    place.subscribe()
    with Listener(place) as listener:
        for content in (b"not json", entry(0), entry(1, "another-vm")):
            place.publish(*[content] * (pubsub_events.MAX_MESSAGES + 50))
        place.publish(entry(2))
        until(lambda: len(listener.news()) == 2, 30, what="the last hint")
        until(lambda: len(listener.taken) == 3 * pubsub_events.MAX_MESSAGES + 151, 30, what="all messages")
    assert listener.news() == ["id-0", "id-2"]


def test_a_subscription_that_is_missing_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub_events, "FIRST_PAUSE", 0.1)
    with Listener(place) as listener:
        until(lambda: listener.breaks, 20, what="a break")
        place.subscribe()
        place.publish(entry(1))
        until(lambda: listener.news() == ["id-1"], 20, what="a hint")
        place.unsubscribe()
        broken = len(listener.breaks)
        until(lambda: len(listener.breaks) > broken, 40, what="a break by the deletion")
        place.subscribe()
        place.publish(entry(2))
        until(lambda: listener.news() == ["id-1", "id-2"], 20, what="the next hint")


def test_a_stream_closes_while_it_waits_to_try_again(place: Place) -> None:
    with Listener(place) as listener:
        until(lambda: listener.breaks, 20, what="a break")
    assert listener.breaks


def test_a_preemption_that_no_observation_shows_is_reported_to_hf(pubsub: str, place: Place, tmp_path: Path) -> None:
    """Test the whole chain: the running provisioner takes the event, and getReturnRequests prints the seconds left.

    The group's instances are not Spot. An observation shows that an instance stops, but neither the reason nor the
    time.
    """
    site, state = small_site(tmp_path), StateDir(tmp_path)
    site.settings |= {"events": {"project": PROJECT, "subscription": place.name}, "loop": {"interval_seconds": 0.5}}
    mig = site.settings["pools"]["mig-a"] | {"observe_seconds": 0.3}
    site.settings["pools"] = {"mig-a": mig}
    site.templates = [template("T", pools=["mig-a"])]
    with Simulator(
        site.load(), conditions=Conditions.of(timings={"mig": QUICK}), serving=Serving(pubsub=pubsub)
    ) as simulator:
        mig["endpoint"] = simulator.compute
        site.write()
        id_ = add_request(state, "T", 2, created_wall=time.time(), create_for="t")
        with running_loop(site.path, tmp_path) as metrics:
            until(lambda: state.status.exists() and state.status.read_all()[id_].ended, 30, what="two machines")
            names = sorted(machine["name"] for machine in simulator.state()["machines"])
            assert simulator.preempt(names[0]) == names[:1]
            lost = until(state.status.read_lost, 20, what="the notice")
            assert lost.keys() == {names[0]}
            assert 15 < lost[names[0]].grace <= 30
            counted = requests.get(metrics, timeout=30).text
            assert 'hf_provisioner_events_total{worth="notice"} 1.0' in counted
            assert 'hf_provisioner_wakeups_total{source="pubsub"}' in counted


@contextmanager
def running_loop(config: Path, state: Path) -> Iterator[str]:
    """Run ``provisioner run`` as a process, and yield the address of its metrics."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "provisioner", "run", "--config", str(config), "--state-dir", str(state)]
    with (state / "loop.log").open("wb") as log:
        process = subprocess.Popen([*command, "--listen", listen], stdout=log, stderr=log)
        try:
            yield f"http://{listen}/metrics"
        finally:
            process.terminate()
            assert process.wait(20 * PATIENCE) == 0, (state / "loop.log").read_text()


def run_events(place: Place, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    site = small_site(directory)
    site.settings["events"] = {"project": PROJECT, "subscription": place.name}
    site.write()
    command = [sys.executable, "-m", "provisioner", "--log-level", "ERROR", "events", "--config", str(site.path)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)


def test_the_command_prints_the_worth_of_each_message(place: Place, tmp_path: Path) -> None:
    place.subscribe()
    place.publish(entry(1), b"not json", entry(1))
    done = run_events(place, tmp_path, "--seconds", "4", "-o", "json")
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(line["worth"] for line in printed) == ["malformed", "notice", "repeated"]
    assert {line["machine"] for line in printed} == {NAME, ""}
    assert run_events(place, tmp_path, "--seconds", "3").stdout == "", "what was printed was taken"


def test_the_command_prints_the_reason_if_nothing_can_be_read(place: Place, tmp_path: Path) -> None:
    done = run_events(place, tmp_path, "--seconds", "20")
    assert done.returncode == 1
    assert "NotFound" in done.stderr
