"""Ids of new requests. The scripts import this module at each call that records a request."""

from __future__ import annotations

import os

from provisioner.names import REQUEST_ID_LENGTH

ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_id() -> str:
    """Return ten random characters of [a-z0-9]. With 50 random bits, no id is used twice."""
    number, base = int.from_bytes(os.urandom(16)), len(ID_ALPHABET)
    return "".join(ID_ALPHABET[number // base**place % base] for place in range(REQUEST_ID_LENGTH))
