"""Labels of instances: the labels that Compute Engine accepts, and the checks of setLabels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provisioner.lab.cloud.compute.fingerprints import check_fingerprint, fingerprint_of
from provisioner.lab.cloud.compute.operations import ApiError

MOST = 64
"""Maximum number of labels of a resource."""

_LETTERS = r"[^\W\dA-Z_]"
_KEY = re.compile(rf"{_LETTERS}(?:{_LETTERS}|[\d_-]){{0,62}}")
_VALUE = re.compile(rf"(?:{_LETTERS}|[\d_-]){{0,63}}")


def new_labels(body: Mapping[str, Any], current: Mapping[str, str]) -> dict[str, str]:
    """Return the labels in the body of setLabels.

    Raise 400 for a wrong label. Raise 412 if the labels have changed since the caller read them.
    """
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
