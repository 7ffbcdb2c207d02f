"""What tells one content of HostFactory's two files from another, on whichever host it is read. Pure.

The scripts compute it at each call: hence no hash of a library that costs milliseconds to load.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

OF_A_MOMENT = ("availableNumber", "requestedMachines")
"""Fields of a template that HF may have written from an old answer: they say nothing of the template."""


class Digests(NamedTuple):
    """Of both files of a provider instance."""

    config: str
    templates: str


def digest_of(document: object) -> str:
    """Eight hexadecimal digits, however the JSON is spaced and ordered. Guards against mistakes, not against malice."""
    import zlib  # most calls of the scripts read no template, and do without

    return f"{zlib.crc32(json.dumps(document, sort_keys=True).encode('utf-8', 'surrogatepass')):08x}"


def digest_of_templates(entries: list[object]) -> str:
    """The same of a list of templates, without what is of a moment."""
    return digest_of([_lasting(entry) for entry in entries])


def _lasting(entry: object) -> object:
    if not isinstance(entry, Mapping):
        return entry
    return {name: value for name, value in entry.items() if name not in OF_A_MOMENT}
