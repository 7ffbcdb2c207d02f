"""Looks as a cycle takes them: which say the same, and which say nothing of a pool's machines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from dataclasses import replace

from provisioner.loop.clock import utc
from provisioner.model import Doubt, ErrorClass, Failure, Limits, Look, Memory, Snapshot, Unobserved
from provisioner.planning.relocation import moved

log = logging.getLogger(__name__)


def identity(look: Look) -> tuple[object, ...]:
    """The same for two looks that say the same, except for when they began."""
    if isinstance(look, Snapshot):
        said = look.causes, look.foreign, look.namesakes, look.asked, look.spec, look.answered_by, look.listed
        return look.pool, id(look.machines), *said
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


class DoubtedPools:
    """Pools whose newest look lacks too many machines at once to be believed."""

    def __init__(self) -> None:
        self._begun: Mapping[str, float] = {}
        """Wall time at which each doubt began."""

    def told(
        self, looks: Mapping[str, Look], doubts: Mapping[str, Doubt], now: float, wall: float
    ) -> Mapping[str, Look]:
        """The looks, with a sentence about each such pool; that a doubt begins or ends is logged once.

        A look that fails ends none.
        """
        kept = {name: since for name, since in self._begun.items() if isinstance(looks.get(name), Unobserved)}
        begun = kept | {name: self._begun.get(name, wall - now + doubt.since) for name, doubt in doubts.items()}
        for name in self._begun.keys() - begun.keys():
            log.warning("Pool is no longer in doubt", extra={"pool": name})
        for name in doubts.keys() - self._begun.keys():
            facts = {"machines": doubts[name].machines, "known": doubts[name].expected, "since": utc(begun[name])}
            log.warning("Pool lacks many machines at once: waiting for a second look", extra={"pool": name, **facts})
        self._begun = begun
        return {name: _doubted(look, doubts.get(name), begun.get(name, now)) for name, look in looks.items()}


def _doubted(look: Look, doubt: Doubt | None, begun: float) -> Look:
    """With a sentence for people, if it is in doubt."""
    if doubt is None or not isinstance(look, Snapshot):
        return look
    if doubt.astray:
        text = (
            f"pools.{look.pool} {doubt.astray} (since {utc(begun)}): does another cluster or project answer in its "
            "place? Put back what it is reached by and start again; or, if its machines are gone, run `provisioner "
            "recover --release-brake`. Until then none of them counts as lost."
        )
        return Unobserved(look.pool, look.began, Failure(ErrorClass.INVALID, text))
    text = (
        f"{doubt.machines} of {doubt.expected} machines are missing since {utc(begun)}, all at once and without a "
        "cause. Nothing is made or deleted here and HostFactory is told nothing of them before a look "
        f"{doubt.settled_by - doubt.since:g} s later says the same."
    )
    return replace(look, problems=(*look.problems, text))
