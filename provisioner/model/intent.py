"""What is wanted, as HostFactory's scripts record it (intent.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """HF asks for ``count`` machines of a template, as a script recorded it."""

    id: str
    template: str
    count: int
    created_wall: float
    """Epoch seconds on the script's host. Only read when memory is lost."""
    rc_account: str = ""
    """LSF's account of the request; echoed with each machine."""


@dataclass(frozen=True, slots=True)
class ReturnRequest:
    """HF gives the named machines back. Names are short host names, as machine names are."""

    id: str
    names: tuple[str, ...]
    created_wall: float


@dataclass(frozen=True, slots=True)
class Intent:
    """What intent.json holds."""

    provisioner: str
    generation: int
    requests: Mapping[str, Request]
    returns: Mapping[str, ReturnRequest]
