"""Checks of the Pub/Sub subscription. The subscription must exist and keep each message until we read it. We must have
the right to read the subscription.

Other readers of the subscription cannot be detected.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.api_core.exceptions import GoogleAPIError, MethodNotImplemented, NotFound, PermissionDenied
from google.auth.exceptions import GoogleAuthError
from google.cloud import pubsub_v1

from provisioner.backends import Finding, Severity

NAME = "events"
"""Name of the subscription in findings, which is the name of its section in ``provisioner.yaml``."""

DELETED_TOPIC = "_deleted-topic_"
"""Topic that a subscription names after its topic was deleted."""

CONSUME = "pubsub.subscriptions.consume"
"""The right to receive messages. To read the subscription's settings, another right is needed."""


def subscription_findings(project: str, subscription: str, seconds: float) -> list[Finding]:
    """Return the problems as warnings, because machines are made and observed even without events. Each call may
    take ``seconds``."""
    path = f"projects/{project}/subscriptions/{subscription}"
    try:
        with pubsub_v1.SubscriberClient() as client:
            texts = [*_problems(client, path, seconds)]
    except (GoogleAPIError, GoogleAuthError) as error:
        texts = [f"cannot be asked: {error}"]
    return [Finding(NAME, Severity.WARNING, f"subscription {path}: {text}") for text in texts]


def _problems(client: Any, path: str, seconds: float) -> Iterator[str]:
    limits = {"timeout": seconds, "retry": None}
    try:
        yield from settings_problems(client.get_subscription(request={"subscription": path}, **limits))
    except NotFound:
        yield (
            "does not exist, or has expired, because unread subscriptions expire after 31 days: make it with "
            "--expiration-period=never, or correct events.subscription"
        )
        return
    except PermissionDenied as error:
        yield f"its settings cannot be read, so they were not checked: {error.message}"
    try:
        granted = client.test_iam_permissions(request={"resource": path, "permissions": [CONSUME]}, **limits)
    except MethodNotImplemented:
        return  # the emulator does not check identities
    if CONSUME not in granted.permissions:
        yield f"the loop may not read it: give the loop's account roles/pubsub.subscriber on it ({CONSUME})"


def settings_problems(subscription: Any) -> Iterator[str]:
    """Yield the problems in the settings of the subscription."""
    if subscription.topic == DELETED_TOPIC:
        yield "its topic was deleted, so that no message arrives any more: make both again"
    if subscription.detached:
        yield "it was detached from its topic, so that no message arrives any more: make it again"
    if subscription.state == pubsub_v1.types.Subscription.State.RESOURCE_ERROR:
        yield "it cannot deliver its messages (RESOURCE_ERROR): make it a pull subscription that only this loop reads"
    others = (subscription.push_config.push_endpoint, subscription.bigquery_config.table)
    for other in (*others, subscription.cloud_storage_config.bucket):
        if other:
            yield f"it delivers its messages to {other}: make it a pull subscription that only this loop reads"
