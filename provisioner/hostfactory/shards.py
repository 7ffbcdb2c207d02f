"""Shards: the loops that share the pools of one provider instance.

``STATE_SHARDS`` of the provider config names the shards. Scripts and loops read the same key. So all of them know which
loop makes the machines of a pool. The scripts import this module only if the key is set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

SHARD_VARIABLE = "PROVISIONER_SHARD"
"""Environment variable with the number of the loop's shard."""

SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxy"
"""First characters of request ids: the id of a request that shard N serves begins with character N. A machine's name
contains the request id, so the name shows the shard, too."""

SPANNING = "z"
"""First character of the id of a request that several shards serve."""

Shards = Sequence[Sequence[str]]
"""For each shard, the names of the pools that the setting assigns to it. A hash assigns the other pools."""


def parse(value: object) -> tuple[tuple[str, ...], ...] | None:
    """Return, for each shard, the pool names that a setting assigns to it; None if the setting is invalid.

    The setting is either the number of shards, which assigns no pool, or one list of pool names for each shard.
    """
    if type(value) is int and 1 <= value <= len(SYMBOLS):
        return ((),) * value
    lists = value if isinstance(value, list) and all(isinstance(names, list) for names in value) else []
    named = [name for names in lists for name in names]
    is_valid = 1 <= len(lists) <= len(SYMBOLS) and all(isinstance(name, str) for name in named)
    return tuple(map(tuple, lists)) if is_valid and len(set(named)) == len(named) else None


def find_shard(pool: str, shards: Shards) -> int:
    """Return the number of the shard to which a pool belongs.

    If the setting does not assign the pool, the shard with the highest hash gets the pool (rendezvous hashing). So a
    change in the number of shards moves only a few pools.
    """
    digest = {number: hashlib.sha256(f"{number}/{pool}".encode()).digest() for number in range(len(shards))}
    return max(digest, key=lambda number: (pool in shards[number], digest[number]))


def serving_shards(pools: Iterable[str], shards: Shards) -> list[int]:
    """Return the numbers of the shards to which any of the pools belongs."""
    return sorted({find_shard(pool, shards) for pool in pools})


def shard_instance(name: str, shard: int) -> str:
    """Return the name of a shard: the name of its provider instance with the shard's number. The shard's state and
    machines are identified by this name."""
    return f"{name}-s{shard}"


def read_shard(shards: Shards, environment: Mapping[str, str]) -> int | None:
    """Return the number of the shard that PROVISIONER_SHARD names; None if the variable is not set. Raises ValueError
    if there is no such shard."""
    written = environment.get(SHARD_VARIABLE, "")
    if not written:
        return None
    if not written.isdecimal() or not written.isascii() or int(written) >= len(shards):
        words = (
            f"the number of this loop's shard, 0 to {len(shards) - 1}" if shards else "no value, without STATE_SHARDS"
        )
        raise ValueError(f"{SHARD_VARIABLE}: expected {words}, got {written!r}")
    return int(written)
