"""The state of a provider instance with several loops, as HF's scripts use it. The loops share the instance's pools.

Each loop has a shard, which keeps its state under a name of its own. A request id begins with the shard's symbol, so
ids and machine names show the shard. The id of a request that spans shards begins with ``SPANNING``. Each part of such
a request has an id that begins with the symbol of its shard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from provisioner.hostfactory import Answer, Loss, Polled, Recorded
from provisioner.hostfactory.provider_config import Digests
from provisioner.hostfactory.shards import SPANNING, SYMBOLS, Shards, serving_shards, shard_instance
from provisioner.names import REQUEST_ID_LENGTH, RETURN_ID_PREFIX, SLOT_DIGITS, group_by
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.script_state import KubeScriptState
from provisioner.state.new_ids import new_id

PART = 100
"""Maximum number of machines of a request that one shard serves alone. Most requests of HF are not larger, and the
answer of one shard is read with few calls."""

Pools = Callable[[], Mapping[str, Sequence[str]]]
"""Function that returns the names of the pools of each template. The function is called only if a call needs the
pools."""


class ShardedScriptState:
    """The ``ScriptState`` of several shards. Every method raises StateError."""

    def __init__(self, api: ApiServer, name: str, shards: Shards, pools: Pools, directory: str = "") -> None:
        """Make the state of each shard. ``name``: the provider instance. ``directory``: directory that keeps refused
        calls until they can be sent."""
        self._states = [KubeScriptState(api, shard_instance(name, number), directory) for number in range(len(shards))]
        self._shards, self.pools = shards, pools
        first = self._states[0]  # the loop of the first shard reports these notes
        self.note_shown, self.note_refusal = first.note_shown, first.note_refusal

    def record_request(
        self, provisioner: str, template: str, count: int, *, created_wall: float, rc_account: str
    ) -> Recorded:
        """Record the request in one of the shards that can serve it. A large request is recorded in parts, one in each
        of these shards."""
        serving = serving_shards(self.pools()[template], self._shards)
        id_ = new_id()
        if count <= PART:
            serving = [serving[int(id_, 36) % len(serving)]]
        share, rest = divmod(count, len(serving))
        counts = {shard: share + (place < rest) for place, shard in enumerate(serving)}

        def record(shard: int, id_: str) -> Recorded:
            instance, count = shard_instance(provisioner, shard), counts[shard]
            return self._states[shard].record_request(
                instance, template, count, created_wall=created_wall, rc_account=rc_account, id_=id_
            )

        return _record_parts(serving, id_, "", record)

    def record_return(self, provisioner: str, names: Iterable[str], *, created_wall: float) -> Recorded:
        """Record the return in the shards that have the machines."""
        named = self._by_shard(names)

        def record(shard: int, id_: str) -> Recorded:
            instance = shard_instance(provisioner, shard)
            return self._states[shard].record_return(instance, named[shard], created_wall=created_wall, id_=id_)

        return _record_parts(sorted(named), new_id(), RETURN_ID_PREFIX, record)

    def _by_shard(self, machines: Iterable[str]) -> dict[int, list[str]]:
        """Return the names by shard number. A name that shows no shard belongs to the first shard."""
        return group_by(lambda name: max(self._shard(name[-REQUEST_ID_LENGTH - SLOT_DIGITS - 1 :]), 0), machines)

    def _shard(self, id_: str) -> int:
        """Return the number of the shard that a request id shows; -1 if it shows none."""
        shard = SYMBOLS.find(id_[:1] or SPANNING)
        return shard if shard < len(self._states) else -1

    def poll(self, ids: Iterable[str]) -> Polled:
        """Return the answer to each known id. The answer to a request that spans shards is merged from the answers to
        its parts."""
        parts = {id_: self._parts_of(id_) for id_ in ids}
        answers: dict[str, Answer | None] = {}
        silences = []
        for shard, state in enumerate(self._states):
            if asked := [part for found in parts.values() for part, place in found.items() if place == shard]:
                polled = state.poll(asked)
                answers |= polled.answers
                silences.append(polled.silent_seconds)
        known = {id_: [answers[part] for part in found if part in answers] for id_, found in parts.items()}
        merged = {id_: found[0] if id_ in answers else _merge(id_, found) for id_, found in known.items() if found}
        return Polled(merged, _longest(silences))

    def _parts_of(self, id_: str) -> dict[str, int]:
        """Return the ids under which the shards may have the request or its parts, each with the number of its
        shard."""
        prefix = RETURN_ID_PREFIX if id_.startswith(RETURN_ID_PREFIX) else ""
        rest = id_[len(prefix) :]
        if rest.startswith(SPANNING):
            return {f"{prefix}{SYMBOLS[shard]}{rest[1:]}": shard for shard in range(len(self._states))}
        return {id_: self._shard(rest)}

    def lost(self, machines: Iterable[str]) -> Mapping[str, Loss]:
        """Return the losses among ``machines`` that any shard has published."""
        named = list(machines)
        return {name: loss for state in self._states for name, loss in state.lost(named).items()}

    def available(self) -> Mapping[str, int]:
        """Return how many further machines each template may have, summed over the shards that serve it. If a template
        has no cap in one of these shards, there is no sum, so the template is left out."""
        free = [state.available() for state in self._states]
        total = {}
        for template, pools in self.pools().items():
            counts = [free[shard].get(template) for shard in serving_shards(pools, self._shards)]
            if counts and None not in counts:
                total[template] = sum(filter(None, counts))
        return total

    def note_hosts(self, names: Mapping[str, object]) -> None:
        """Record in each shard the listed hosts whose names show this shard. The first shard also gets the hosts whose
        names show no shard."""
        named = self._by_shard(names)
        for shard, state in enumerate(self._states):
            state.note_hosts(dict.fromkeys(named.get(shard, ())))

    def note_read(self, digests: Digests) -> None:
        """Keep the digests of HF's two files until this process writes its next object or note. That write then
        contains the digests."""
        for state in self._states:
            state.note_read(digests)


def _record_parts(shards: Sequence[int], id_: str, prefix: str, record: Callable[[int, str], Recorded]) -> Recorded:
    """Call ``record`` for each shard's part of a request. Return the id for HF after all parts are durable."""
    ids = {shard: f"{prefix}{SYMBOLS[shard]}{id_[1:]}" for shard in shards}
    recorded = [record(shard, part) for shard, part in ids.items()]
    whole = f"{prefix}{SPANNING}{id_[1:]}" if len(shards) > 1 else recorded[0].id
    return Recorded(whole, _longest(one.silent_seconds for one in recorded))


def _longest(silences: Iterable[float | None]) -> float | None:
    return max((seconds for seconds in silences if seconds is not None), default=None)


def _merge(id_: str, answers: Sequence[Answer | None]) -> Answer | None:
    """Return the answer to a request, merged from the answers to its parts; None if no part has an answer yet."""
    if not (published := [answer for answer in answers if answer is not None]):
        return None
    entries = [json.loads(answer.text) for answer in published]
    found = {entry["status"] for entry in entries}
    ended = len(published) == len(answers) and all(answer.ended for answer in published)
    status = "running" if not ended else "complete" if found == {"complete"} else "complete_with_error"
    message = " ".join(dict.fromkeys(entry["message"] for entry in entries if entry["message"]))
    machines = [machine for entry in entries for machine in entry["machines"]]
    whole = {"requestId": id_, "status": status, "message": message, "machines": machines}
    return Answer(json.dumps(whole, separators=(",", ":"), ensure_ascii=False), ended)
