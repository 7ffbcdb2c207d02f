"""Batches: several API calls in one request (``multipart/mixed``), which gcloud and google-api-python-client send."""

from __future__ import annotations

import email.parser
import email.policy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from provisioner.lab.cloud.compute.operations import PHRASES, ApiError

BOUNDARY = "batch_simulator_answer"


@dataclass(frozen=True)
class Part:
    """A call inside a batch."""

    id: str
    """Content-ID, with its angle brackets."""
    verb: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """The headers by name in lower case."""
    text: str


def parse_batch(content_type: str, body: bytes) -> list[Part]:
    """Return the calls of a batch. Raise 400 if the request is not a batch."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    if not message.is_multipart():
        raise ApiError(400, "badRequest", "The batch is not multipart/mixed")
    return [_part(str(part.get("Content-ID", "")), str(part.get_payload())) for part in message.iter_parts()]


def _part(identity: str, text: str) -> Part:
    line, _, rest = text.replace("\r\n", "\n").lstrip("\n").partition("\n")
    words = line.split()
    if len(words) < 2:
        raise ApiError(400, "badRequest", f"The batch holds no request line: '{line}'")
    head, _, body = rest.partition("\n\n")
    pairs = (entry.partition(":") for entry in head.split("\n"))
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    url = urlsplit(words[1])
    return Part(identity, words[0], url.path, dict(parse_qsl(url.query)), headers, body)


def format_batch(responses: Iterable[tuple[str, int, str]]) -> bytes:
    """Return the body of the response to a batch. ``responses``: Content-ID, status and JSON of the response to each
    call. ``BOUNDARY`` separates the responses."""
    parts = [
        f"--{BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <response-{identity.strip('<>')}>\r\n\r\n"
        f"HTTP/1.1 {status} {PHRASES.get(status, 'OK')}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n"
        f"{text}\r\n"
        for identity, status, text in responses
    ]
    return ("".join(parts) + f"--{BOUNDARY}--\r\n").encode()
