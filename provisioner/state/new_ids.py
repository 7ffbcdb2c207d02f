"""Ids of new requests. The scripts import this module at each call that records a request."""

from __future__ import annotations

import os

from provisioner.names import REQUEST_ID_LENGTH

ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_id() -> str:
    """Return ten random characters of [a-z0-9]. With 50 random bits, no id is used twice."""
    letters = ""
    while len(letters) < REQUEST_ID_LENGTH:
        for byte in os.urandom(REQUEST_ID_LENGTH):
            if byte < 256 - 256 % len(ID_ALPHABET):
                letters += ID_ALPHABET[byte % len(ID_ALPHABET)]
    return letters[:REQUEST_ID_LENGTH]
