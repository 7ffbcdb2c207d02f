"""The attributes of an instance that a machine's scripts read."""

from __future__ import annotations

import re
from pathlib import Path

OPTIONAL = {
    "hf-machine-domain",
    "hf-ego-attributes",
    "hf-ego-master-address",
    "hf-join-seconds",
    "hf-join-failed",
    "hf-ego-user",
    "hf-ego-password-file",
    "hf-ego-password-secret",
}
"""Attributes that an instance may lack."""


def attributes_read(*scripts: Path) -> set[str]:
    """Return the names of the attributes that these scripts request from the metadata server."""
    text = "".join(script.read_text() for script in scripts)
    return {*re.findall(r"attribute (hf-[-\w]+)", text), *re.findall(r"attributes/(hf-[-\w]+)", text)}
