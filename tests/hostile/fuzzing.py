"""Documents that are almost right. HOSTILE_EXAMPLES sets the number of documents for each reader."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def fuzzed(examples: int) -> settings:
    """Return settings by which a test gets ``examples`` documents, or HOSTILE_EXAMPLES documents if that is set."""
    return settings(
        max_examples=int(os.environ.get("HOSTILE_EXAMPLES", examples)),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


JUNK: Sequence[Any] = (
    *(None, True, False, 0, -1, 10**18, 10**400, 1e308, -1e308, 0.5, "", "x" * 5000, "\x1b[31m\u202e", "NaN", "inf"),
    *("RUNNING", "DELETING", "Failed", "True", "9" * 5000, "0001-01-01T00:00:00Z", "9999-12-31", "²", "a/b"),
    *([], {}, [[]], [{}], {"a": {}}, [None], [1], ["x"], {"": None}),
)
SEEDS = st.integers(0, 2**40)
"""Seeds of the changes. The values that a test has drawn before determine what is drawn from a seed, and in which
order."""


def mutated(document: Any, chance: random.Random) -> Any:
    """Return the document with up to three changes. A change replaces a part, doubles it, or leaves it out."""
    document = copy.deepcopy(document)
    for _ in range(chance.randint(0, 3)):
        holder: Any = {"": document}
        here, key = document, ""
        while isinstance(here, dict | list) and here and chance.random() < 0.85:
            holder, key = here, chance.choice(list(here) if isinstance(here, dict) else range(len(here)))
            here = holder[key]
        if holder == {"": document}:
            continue
        what = chance.randrange(6)
        if what == 0 and isinstance(holder, dict):
            del holder[key]
        elif what == 1 and isinstance(holder, list):
            holder.append(copy.deepcopy(here))
        else:
            holder[key] = copy.deepcopy(chance.choice(JUNK))
    return document


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Return changed bytes. JSON is changed as in ``mutated``. In other bytes, and in some JSON, a part is cut out,
    overwritten or doubled."""
    if chance.randrange(3):
        try:
            return json.dumps(mutated(json.loads(content), chance)).encode()
        except ValueError:
            pass
    at, end = sorted(chance.choices(range(len(content) + 1), k=2))
    end = min(end, at + chance.choice((0, 1, 10, 10**9)))
    return (
        content[:at]
        + chance.choice((b"", chance.randbytes(end - at), content[:at][:5000], b"[" * 20_000))
        + content[end:]
    )
