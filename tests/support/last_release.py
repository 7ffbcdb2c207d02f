"""The content of a state directory that the last release can read: its schema version, and all fields of records.

Run ``python -m tests.support.last_release > tests/golden/release.json`` only for a release. A later version must write
state that the last release can read. If this is impossible, the version must raise the schema version, so that the last
release refuses the state.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from provisioner import model
from provisioner.state.database import SCHEMA

STORED = (
    model.Memory,
    model.Moment,
    model.Orphans,
    model.Hosts,
    model.Places,
    model.UsageTotals,
    model.RequestRecord,
    model.ReturnRecord,
    model.Window,
    model.Brake,
    model.Hold,
    model.Slot,
    model.Observed,
    model.Life,
    model.Deletion,
    model.Tries,
    model.Fingerprint,
    model.Failure,
    model.Notice,
    model.Request,
    model.ReturnRequest,
)


def names(kind: Any) -> list[str]:
    """Return the names of a record's fields as the state files have them. The order is that of a row."""
    return [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind._fields)


def readable() -> dict[str, Any]:
    """Return the schema version and the fields that this version can read."""
    return {"schema": SCHEMA, "fields": {kind.__name__: names(kind) for kind in STORED}}


if __name__ == "__main__":
    print(json.dumps(readable(), indent=1))
