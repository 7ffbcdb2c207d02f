"""Looks as a cycle takes them: which say the same, and which say nothing of a pool's machines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set

from provisioner.model import Limits, Look, Memory, Snapshot, Unobserved
from provisioner.planning.relocation import moved

log = logging.getLogger(__name__)


def identity(look: Look) -> tuple[object, ...]:
    """The same for two looks that say the same, except for when they began."""
    if isinstance(look, Snapshot):
        return look.pool, id(look.machines), look.causes, look.foreign, look.namesakes, look.asked, look.spec
    return (look.pool,)


class MovedPools:
    """Pools whose machines are elsewhere than the configuration says."""

    def __init__(self) -> None:
        self._logged: Set[str] = frozenset()

    def unseen(self, looks: Mapping[str, Look], memory: Memory, limits: Limits) -> Mapping[str, Look]:
        """The looks, without what they say of such pools; that is logged once for each."""
        failures = moved(memory, limits)
        for name in failures.keys() - self._logged:
            log.error("Pool cannot be seen", extra={"pool": name, "text": failures[name].text})
        self._logged = failures.keys()
        unseen = {name: Unobserved(name, looks[name].began, failures[name]) for name in failures.keys() & looks.keys()}
        return {**looks, **unseen}
