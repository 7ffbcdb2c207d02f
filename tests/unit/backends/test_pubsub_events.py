"""The conclusions from audit log entries. Each entry is judged once. The entries are real ones with changed names."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner.backends import pubsub_events
from provisioner.backends.pubsub_events import EventStream, InstanceEvent, Judged, Sieve, Worth, parse
from provisioner.backends.responses import ODD_RESPONSES
from provisioner.commands import events as command
from provisioner.commands.events import message_document, message_text
from provisioner.settings.definitions import Events

NAME = "hf-abcde01234-000007"


def preempted(name: str = NAME) -> dict[str, Any]:
    """Return an entry of the log ``system_event``. It is the first and the last entry of its operation, and has no
    ``response``."""
    return {
        "protoPayload": {
            "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
            "status": {"message": "Instance was preempted."},
            "authenticationInfo": {"principalEmail": "system@google.com"},
            "serviceName": "compute.googleapis.com",
            "methodName": "compute.instances.preempted",
            "resourceName": f"projects/P/zones/europe-west1-c/instances/{name}",
            "request": {"@type": "type.googleapis.com/compute.instances.preempted"},
        },
        "insertId": "qnwer3e38dfz",
        "resource": {
            "type": "gce_instance",
            "labels": {"instance_id": "1844", "project_id": "P", "zone": "europe-west1-c"},
        },
        "timestamp": "2023-09-16T10:42:31.325309Z",
        "severity": "INFO",
        "logName": "projects/P/logs/cloudaudit.googleapis.com%2Fsystem_event",
        "operation": {
            "id": "systemevent-1694860946116",
            "producer": "compute.instances.preempted",
            "first": True,
            "last": True,
        },
        "receiveTimestamp": "2023-09-16T10:42:31.782066320Z",
    }


def inserted(*, first: bool, failed: bool = False, insert_id: str = "a1") -> dict[str, Any]:
    """Return one of the two ``activity`` entries of a long operation. The last entry has few fields."""
    payload: dict[str, Any] = {
        "methodName": "v1.compute.instances.insert",
        "resourceName": f"projects/123456/zones/us-central1-a/instances/{NAME}",
        "request": {"@type": "type.googleapis.com/compute.instances.insert"},
    }
    if first:
        payload["response"] = {
            "@type": "type.googleapis.com/operation",
            "operationType": "insert",
            "status": "RUNNING",
            "targetLink": f"https://www.googleapis.com/compute/v1/{payload['resourceName']}",
        }
    if failed:
        payload["status"] = {"code": 8, "message": "ZONE_RESOURCE_POOL_EXHAUSTED"}
    return {
        "protoPayload": payload,
        "insertId": insert_id,
        "severity": "ERROR" if failed else "NOTICE",
        "labels": {"compute.googleapis.com/root_trigger_id": "c586"},
        "operation": {
            "id": "operation-1",
            "producer": "compute.googleapis.com",
            **({"first": True} if first else {"last": True}),
        },
    }


def refused() -> dict[str, Any]:
    """Return an immediate error of the API, which has neither operation nor operationType."""
    return {
        "protoPayload": {
            "methodName": "v1.compute.instances.delete",
            "resourceName": f"projects/P/zones/us-central1-a/instances/{NAME}",
            "response": {"@type": "type.googleapis.com/error", "error": {"code": 404, "message": "not found"}},
            "status": {"code": 5, "message": "not found"},
        },
        "insertId": "b2",
        "severity": "ERROR",
    }


def with_method(method: str, resource: str = f"projects/P/zones/z/instances/{NAME}") -> dict[str, Any]:
    return {"protoPayload": {"methodName": method, "resourceName": resource}, "insertId": method}


def data(entry: Any) -> bytes:
    return json.dumps(entry).encode()


@pytest.mark.parametrize(
    ("entry", "event", "failed"),
    [
        pytest.param(preempted(), InstanceEvent.PREEMPTED, False, id="a preemption is a system event without response"),
        pytest.param(inserted(first=True), InstanceEvent.CREATED, False, id="the first entry of an insert"),
        pytest.param(
            inserted(first=False), InstanceEvent.CREATED, False, id="the last entry of an insert has only a request"
        ),
        pytest.param(
            inserted(first=False, failed=True), InstanceEvent.CREATED, True, id="a stock-out is a failed insert"
        ),
        pytest.param(refused(), InstanceEvent.DELETED, True, id="an immediate API error has no operation"),
    ],
)
def test_golden_entries_name_the_instance_and_what_happened(
    entry: dict[str, Any], event: InstanceEvent, failed: bool
) -> None:
    hint = parse(data(entry))
    assert hint is not None
    assert (hint.instance, hint.event, hint.failed) == (NAME, event, failed)


@pytest.mark.parametrize(
    ("method", "event"),
    [
        ("v1.compute.instances.delete", InstanceEvent.DELETED),
        ("beta.compute.instances.delete", InstanceEvent.DELETED),
        ("compute.instances.repair.recreateInstance", InstanceEvent.RECREATED),
        ("compute.instances.automaticRestart", InstanceEvent.RECREATED),
        ("compute.instances.hostError", InstanceEvent.CRASHED),
        ("compute.instances.guestTerminate", InstanceEvent.STOPPED),
        ("compute.instances.terminateOnHostMaintenance", InstanceEvent.STOPPED),
        ("v1.compute.instances.stop", InstanceEvent.STOPPED),
    ],
)
def test_the_method_is_known_by_its_end(method: str, event: InstanceEvent) -> None:
    hint = parse(data(with_method(method)))
    assert hint is not None
    assert hint.event is event


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(with_method("v1.compute.instances.setLabels"), id="a method that ends nothing"),
        pytest.param(with_method("v1.compute.subinstances.delete"), id="a method that only ends alike"),
        pytest.param(
            with_method(
                "v1.compute.instanceGroupManagers.createInstances",
                "projects/P/zones/z/instanceGroupManagers/hf-a",
            ),
            id="a call on the group: the instances' own entries follow",
        ),
        pytest.param(with_method("v1.compute.instances.delete", "projects/P/zones/z/disks/d"), id="another resource"),
    ],
)
def test_other_entries_are_no_hint(entry: dict[str, Any]) -> None:
    assert parse(data(entry)) is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"not json",
        b"null",
        b'{"protoPayload": null, "insertId": "x"}',
        b'{"protoPayload": {"methodName": "m"}, "insertId": "x"}',
        b'{"protoPayload": {"methodName": "m", "resourceName": "r", "status": "bad"}, "insertId": "x"}',
        b'{"protoPayload": {"methodName": "m", "resourceName": "r"}}',
        pytest.param(b"[" * 100_000, id="nested deeply"),
    ],
)
def test_anything_else_is_malformed_and_nothing_worse(message: bytes) -> None:
    with pytest.raises(ODD_RESPONSES):
        parse(message)


def test_first_and_last_of_one_operation_are_two_hints() -> None:
    first, last = parse(data(inserted(first=True))), parse(data(inserted(first=False)))
    assert first is not None
    assert last is not None
    assert first.key != last.key


@pytest.mark.parametrize(
    ("published", "delay", "grace"),
    [
        ("2023-09-16T10:42:31.825309+00:00", 0.5, 29.5),
        ("2023-09-16T10:43:00.325309+00:00", 29.0, 1.0),
        ("2023-09-16T11:42:31.325309+00:00", 3600.0, None),
        ("2023-09-16T10:42:00.000000+00:00", 0.0, 30.0),
        (None, 0.0, 30.0),
    ],
    ids=["at once", "just in time", "an hour late", "published before it happened", "unknown"],
)
def test_the_time_a_preempted_machine_has_left_follows_from_the_clouds_clocks(
    published: str | None, delay: float, grace: float | None
) -> None:
    hint = parse(data(preempted()), datetime.fromisoformat(published) if published else None)
    assert hint is not None
    assert (hint.delay, hint.grace) == (delay, grace)


@pytest.mark.parametrize("timestamp", ["", "yesterday", "2023-09-16T10:42:31", 7, None])
def test_a_time_that_cannot_be_read_is_an_unknown_delay(timestamp: object) -> None:
    hint = parse(data(preempted() | {"timestamp": timestamp}), datetime(2023, 9, 16, tzinfo=UTC))
    assert hint is not None
    assert hint.delay == 0.0


def test_only_a_preemption_that_came_about_announces_an_end() -> None:
    for entry in (
        inserted(first=True),
        with_method("compute.instances.hostError"),
        preempted() | {"severity": "ERROR"},
    ):
        hint = parse(data(entry))
        assert hint is not None
        assert hint.grace is None


def test_each_message_is_worth_something_else() -> None:
    sieve = Sieve("hf")
    judged = [
        sieve.judge(data(preempted())),
        sieve.judge(data(preempted())),  # the same insertId, published twice
        sieve.judge(data(inserted(first=False))),
        sieve.judge(data(preempted("foreign-vm"))),
        sieve.judge(data(preempted(NAME + "9"))),
        sieve.judge(data(with_method("v1.compute.instances.setLabels"))),
        sieve.judge(b"not json"),
    ]
    assert [message.worth for message in judged] == [
        Worth.NOTICE,
        Worth.REPEATED,
        Worth.WAKE_UP,
        *[Worth.FOREIGN] * 3,
        Worth.MALFORMED,
    ]
    assert [message.news.instance if message.news else None for message in judged] == [NAME, None, NAME, *[None] * 4]
    assert judged[-1].problem.startswith("JSONDecodeError")


def test_only_so_many_entries_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub_events, "REMEMBERED", 2)
    sieve = Sieve("hf")
    judged = [sieve.judge(data(inserted(first=True, insert_id=insert_id))) for insert_id in ("1", "2", "3", "3", "1")]
    assert [message.worth is Worth.REPEATED for message in judged] == [False, False, False, True, False]


class Message:
    """A message as the library passes it to the callback."""

    publish_time = datetime(2023, 9, 16, 10, 42, 32, tzinfo=UTC)

    def __init__(self, content: bytes) -> None:
        self.data = content
        self.acknowledged = 0

    def ack(self) -> None:
        self.acknowledged += 1


@pytest.mark.parametrize("content", [b"not json", data(preempted()), data(preempted("other"))])
def test_every_message_is_acknowledged(content: bytes) -> None:
    message, taken = Message(content), list[Judged]()
    EventStream("p", "s", prefix="hf", taken=taken.append)._receive(message)
    assert message.acknowledged == 1
    assert len(taken) == 1


def test_a_message_is_acknowledged_even_when_the_loop_cannot_be_woken() -> None:
    def broken(_: Judged) -> None:
        raise RuntimeError("the loop is ending")

    message = Message(data(preempted()))
    with pytest.raises(RuntimeError):
        EventStream("p", "s", prefix="hf", taken=broken)._receive(message)
    assert message.acknowledged == 1


def test_a_message_is_printed_as_a_line_or_a_document() -> None:
    sieve = Sieve("hf")
    notice = message_document(sieve.judge(data(preempted()), Message.publish_time))
    assert notice == {
        "worth": "notice",
        "machine": NAME,
        "kind": "preempted",
        "failed": False,
        "timestamp": "2023-09-16T10:42:31.325309Z",
        "delay_seconds": 0.675,
        "grace_seconds": 29.325,
        "problem": "",
    }
    lines = [
        message_text(document)
        for document in (
            notice,
            message_document(sieve.judge(data(inserted(first=False, failed=True)))),
            message_document(sieve.judge(b"not json")),
        )
    ]
    assert lines[0] == f"notice     2023-09-16T10:42:31.325309Z    preempted  {NAME} ends in 29 s"
    assert lines[1].endswith(f"created    {NAME} (failed)")
    assert lines[2].startswith("malformed ")
    assert "JSONDecodeError" in lines[2]


def test_listening_ends_when_its_output_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`provisioner events | head` must end when ``head`` ends. If it went on, it would take messages that the loop
    needs."""

    class Stream:
        def __init__(self, *_: object, taken: Callable[[Judged], None], broke: object, prefix: str) -> None:
            self._thread = threading.Thread(target=taken, args=(Judged(Worth.FOREIGN),))

        def start(self) -> None:
            self._thread.start()

        def close(self) -> None:
            self._thread.join()

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(pubsub_events, "EventStream", Stream)
    monkeypatch.setattr(command, "print", closed, raising=False)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    with pytest.raises(BrokenPipeError):
        command.listen(Events(project="p", subscription="s"), "hf", 5.0, as_json=False)


def test_a_stream_that_breaks_is_opened_again_after_pauses_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    reasons: list[str] = []
    stream = EventStream("p", "s", prefix="hf", taken=lambda _: None, broke=reasons.append)

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            stream._ending.set()

    monkeypatch.setattr(stream, "_stream", lambda: "no such subscription")
    monkeypatch.setattr(stream._ending, "wait", wait)
    stream._supervise()
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]
    assert reasons == ["no such subscription"] * 10


def test_a_stream_that_was_never_started_can_be_closed() -> None:
    calls: list[object] = []
    EventStream("p", "s", prefix="hf", taken=calls.append, broke=calls.append).close()
    assert calls == []
