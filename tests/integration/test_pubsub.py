"""The event stream against Google's own Pub/Sub emulator: hints arrive, everything is acknowledged, breaks heal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.cloud import pubsub_v1

from provisioner import events
from provisioner.events import EventStream, Hint, Kind
from tests.waiting import until

pytestmark = pytest.mark.pubsub

PROJECT = "demo-project"
NAME = "hf-abcde01234-000007"
SDK_PATH = "platform/pubsub-emulator/bin/cloud-pubsub-emulator"


def emulator_program() -> Path | None:
    """The emulator of an installed Cloud SDK."""
    gcloud = shutil.which("gcloud")
    roots = [Path(gcloud).resolve().parents[1]] if gcloud else []
    found = [root / SDK_PATH for root in (*roots, Path("/usr/lib/google-cloud-sdk")) if (root / SDK_PATH).exists()]
    return found[0] if found else None


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running emulator: the environment's, else one of our own, in its own process group."""
    if address := os.environ.get("PUBSUB_EMULATOR_HOST"):
        yield address
        return
    program = emulator_program()
    if program is None or shutil.which("java") is None:
        pytest.skip("pubsub: no Pub/Sub emulator (Cloud SDK with Java, or PUBSUB_EMULATOR_HOST)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (tmp_path_factory.mktemp("pubsub") / "emulator.log").open("wb")
    process = subprocess.Popen(
        [str(program), "--host=127.0.0.1", f"--port={port}"],
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, "JAVA_OPTS": "-Xmx256m"},
    )
    try:
        until(lambda: _answers(port), 30, what="the emulator's port")
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)
        log.close()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def place(emulator: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator)
    made = Place()
    yield made
    made.close()


class Place:
    """A topic and the name of a subscription of its own for each test."""

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
    return json.dumps({"protoPayload": payload, "insertId": f"id-{number}", "severity": "INFO"}).encode()


def test_new_messages_about_our_machines_become_hints(place: Place) -> None:
    place.subscribe()
    hints: list[Hint] = []
    stream = EventStream(PROJECT, place.name, prefix="hf", notify=hints.append)
    stream.start()
    try:
        place.publish(entry(1), b"not json", entry(1), entry(2, "another-vm"), entry(3))
        until(lambda: stream.counts.received == 5, 20, what="five messages")
    finally:
        stream.close()
    assert sorted(hint.key for hint in hints) == ["id-1//00", "id-3//00"]
    assert {(hint.instance, hint.kind) for hint in hints} == {(NAME, Kind.PREEMPTED)}
    counts = stream.counts
    assert (counts.useful, counts.malformed, counts.repeated, counts.breaks) == (2, 1, 1, 0)


def test_every_message_is_acknowledged_whatever_it_holds(place: Place) -> None:
    """The library takes no more than MAX_MESSAGES that are not acknowledged: behind them nothing would come."""
    place.subscribe()
    hints: list[Hint] = []
    stream = EventStream(PROJECT, place.name, prefix="hf", notify=hints.append)
    stream.start()
    try:
        for content in (b"not json", entry(0), entry(1, "another-vm")):
            place.publish(*[content] * (events.MAX_MESSAGES + 50))
        place.publish(entry(2))
        until(lambda: len(hints) == 2, 30, what="the last hint")
        until(lambda: stream.counts.received == 3 * events.MAX_MESSAGES + 151, 10, what="all messages")
    finally:
        stream.close()
    assert {hint.key for hint in hints} == {"id-0//00", "id-2//00"}


def test_a_subscription_that_is_missing_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FIRST_PAUSE", 0.1)
    hints: list[Hint] = []
    stream = EventStream(PROJECT, place.name, prefix="hf", notify=hints.append)
    stream.start()
    try:
        until(lambda: stream.counts.breaks >= 1, 20, what="a break")
        place.subscribe()
        place.publish(entry(1))
        until(lambda: hints, 20, what="a hint")
        place.unsubscribe()
        broken = stream.counts.breaks
        until(lambda: stream.counts.breaks > broken, 40, what="a break by the deletion")
        place.subscribe()
        place.publish(entry(2))
        until(lambda: len(hints) == 2, 20, what="the next hint")
    finally:
        stream.close()
    assert [hint.key for hint in hints] == ["id-1//00", "id-2//00"]


def test_a_stream_closes_while_it_waits_to_try_again(place: Place) -> None:
    stream = EventStream(PROJECT, place.name, prefix="hf", notify=lambda _: None)
    stream.start()
    until(lambda: stream.counts.breaks >= 1, 20, what="a break")
    begun = time.monotonic()
    stream.close()
    assert time.monotonic() - begun < 5
