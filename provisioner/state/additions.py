"""What one call of HF adds to intent: requests and returns under new ids, which will be written together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from provisioner.names import REQUEST_ID_LENGTH, RETURN_ID_PREFIX
from provisioner.state.database import Tables

ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_id() -> str:
    """Ten random characters of [a-z0-9], each equally likely: 50 bits, so that no id ever comes twice."""
    letters = ""
    while len(letters) < REQUEST_ID_LENGTH:
        fair = (byte for byte in os.urandom(REQUEST_ID_LENGTH) if byte < 256 - 256 % len(ID_ALPHABET))
        letters += "".join(ID_ALPHABET[byte % len(ID_ALPHABET)] for byte in fair)
    return letters[:REQUEST_ID_LENGTH]


def _unused(taken: Mapping[str, object], make: Callable[[], str]) -> str:
    identifier = make()
    while identifier in taken:
        identifier = make()
    return identifier


class Additions:
    """New requests and return requests, which will be written together."""

    def __init__(self) -> None:
        self.tables: Tables = {"requests": {}, "returns": {}}

    def add_request(self, template: str, count: int, *, created_wall: float, rc_account: str = "") -> str:
        """Record that HF asks for ``count`` machines; returns its new id, which counts once all is written."""
        document: dict[str, Any] = {"template": template, "count": count, "created_wall": created_wall}
        if rc_account:
            document["rc_account"] = rc_account
        return self._insert("requests", new_id, document)

    def add_return(self, names: Iterable[str], *, created_wall: float) -> str:
        """Record that HF gives the named machines back (short names); returns its new id."""
        document = {"names": list(names), "created_wall": created_wall}
        return self._insert("returns", lambda: RETURN_ID_PREFIX + new_id(), document)

    def _insert(self, table: str, make_id: Callable[[], str], document: dict[str, Any]) -> str:
        identifier = _unused(self.tables[table], make_id)
        self.tables[table][identifier] = document
        return identifier
