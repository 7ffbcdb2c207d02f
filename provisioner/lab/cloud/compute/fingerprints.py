"""Fingerprints of contents. A caller sends the current fingerprint with a change.

The fingerprint proves that the caller has read the current content.
"""

from __future__ import annotations

import base64
import hashlib
import json

from provisioner.lab.cloud.compute.operations import ApiError

_OF_NOTHING = "42WmSpB8rSM="
"""Google's fingerprint of empty labels, tags and the like."""


def fingerprint_of(content: object) -> str:
    """Return eight bytes in base64 that change when the content changes."""
    if not content:
        return _OF_NOTHING
    return base64.b64encode(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()[:8]).decode()


def check_fingerprint(given: object, current: str, message: str) -> None:
    """Raise 412 with this message unless ``given`` is the current fingerprint. Both alphabets of base64 are
    accepted."""
    usual = str(given).replace("-", "+").replace("_", "/")
    if usual != current:
        raise ApiError(412, "conditionNotMet", message)
