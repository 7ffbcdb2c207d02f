"""Labels of instances: which Compute Engine takes, and what of a call to set them is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provisioner.lab.cloud.compute.fingerprints import check_fingerprint, fingerprint_of
from provisioner.lab.cloud.compute.operations import ApiError

MOST = 64
"""Labels of one resource."""

_LETTERS = r"[^\W\dA-Z_]"
_KEY = re.compile(rf"{_LETTERS}(?:{_LETTERS}|[\d_-]){{0,62}}")
_VALUE = re.compile(rf"(?:{_LETTERS}|[\d_-]){{0,63}}")


def new_labels(body: Mapping[str, Any], current: Mapping[str, str]) -> dict[str, str]:
    """The labels in the body of setLabels; 400 for what is no label, 412 when others have changed them since."""
    labels = body.get("labels") or {}
    if not isinstance(labels, dict) or len(labels) > MOST:
        raise _invalid(f"Invalid value for field 'labels': expected an object of at most {MOST} texts")
    for key, value in labels.items():
        if not _KEY.fullmatch(key) or key != key.lower():
            raise _invalid(f"Invalid value for field 'labels': ''. Label key '{key}' violates format constraints.")
        if not isinstance(value, str) or not _VALUE.fullmatch(value) or value != value.lower():
            raise _invalid(f"Invalid value for field 'labels': ''. Label value '{value}' violates format constraints.")
    words = "Labels fingerprint either invalid or resource labels have changed"
    check_fingerprint(body.get("labelFingerprint"), fingerprint_of(current), words)
    return labels


def _invalid(message: str) -> ApiError:
    return ApiError(400, "invalid", message)
