"""Findings of `check --live` on the Pub/Sub subscription."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.cloud import pubsub_v1

from provisioner.backends import Severity
from provisioner.backends.pubsub_subscription import CONSUME, subscription_findings
from provisioner.commands.check import check_lines, event_findings, findings_document
from tests.support.hostfactory.sites import small_site

State = pubsub_v1.types.Subscription.State
PATH = "projects/p/subscriptions/hints"


class Service:
    """A service that answers as Pub/Sub does."""

    def __init__(self, subscription: object, granted: object = (CONSUME,)) -> None:
        self._subscription, self._granted = subscription, granted

    def __call__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Do nothing, because there is no connection."""

    def get_subscription(self, *, request: dict[str, Any], timeout: float, retry: None) -> object:
        assert (request, timeout) == ({"subscription": PATH}, 3.0)
        return self._or_raise(self._subscription)

    def test_iam_permissions(self, *, request: dict[str, Any], timeout: float, retry: None) -> object:
        assert request == {"resource": PATH, "permissions": [CONSUME]}
        return SimpleNamespace(permissions=self._or_raise(self._granted))

    def _or_raise(self, answer: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer


def subscription(**fields: Any) -> pubsub_v1.types.Subscription:
    return pubsub_v1.types.Subscription(name=PATH, topic="projects/p/topics/t", state=State.ACTIVE, **fields)


GOOD = subscription()


@pytest.mark.parametrize(
    ("service", "words"),
    [
        pytest.param(Service(GOOD), [], id="fine"),
        pytest.param(Service(GOOD, exceptions.MethodNotImplemented("")), [], id="the emulator"),
        pytest.param(
            Service(exceptions.NotFound("Resource not found"), ()), ["does not exist, or has expired"], id="gone"
        ),
        pytest.param(Service(GOOD, ()), ["the loop may not read it: give"], id="no right to read"),
        pytest.param(
            Service(exceptions.PermissionDenied("no pubsub.subscriptions.get")),
            ["its settings cannot be read, so they were not checked: no pubsub.subscriptions.get"],
            id="no right to see its settings",
        ),
        pytest.param(Service(pubsub_v1.types.Subscription(topic="_deleted-topic_")), ["its topic was"], id="no topic"),
        pytest.param(Service(subscription(detached=True)), ["it was detached"], id="detached"),
        pytest.param(
            Service(subscription(push_config={"push_endpoint": "https://x.example"})),
            ["it delivers its messages to https://x.example"],
            id="pushed",
        ),
        pytest.param(
            Service(subscription(bigquery_config={"table": "p.d.t"})),
            ["it delivers its messages to p.d.t"],
            id="stored",
        ),
        pytest.param(
            Service(pubsub_v1.types.Subscription(topic="t", state=State.RESOURCE_ERROR)),
            ["it cannot deliver its messages"],
            id="broken",
        ),
        pytest.param(Service(exceptions.ServiceUnavailable("down")), ["cannot be asked: 503 down"], id="no answer"),
        pytest.param(
            Service(DefaultCredentialsError("no credentials")), ["cannot be asked: no cred"], id="no credentials"
        ),
    ],
)
def test_what_is_said_of_a_subscription(monkeypatch: pytest.MonkeyPatch, service: Service, words: list[str]) -> None:
    monkeypatch.setattr(pubsub_v1, "SubscriberClient", service)
    findings = subscription_findings("p", "hints", 3.0)
    assert len(findings) == len(words)
    for finding, part in zip(findings, words, strict=True):
        assert (finding.pool, finding.severity) == ("events", Severity.WARNING)
        assert finding.text.startswith(f"subscription {PATH}: {part}")


def test_a_configuration_without_events_makes_no_call(tmp_path: Path) -> None:
    assert event_findings(small_site(tmp_path).load(), {}) == []


def test_the_subscription_is_distinguished_from_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub_v1, "SubscriberClient", Service(GOOD, ()))
    listed = findings_document(subscription_findings("p", "hints", 3.0))
    document = {"id": "demo", "name_prefix": "hf", "pools": {}, "templates": {}, "warnings": [], "findings": listed}
    assert f"  WARNING events: subscription {PATH}: the loop may not read it" in "\n".join(check_lines(document))
