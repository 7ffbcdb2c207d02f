"""The part of a status that concerns one pool, one template or one request. The functions are pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from provisioner.telemetry.pool_windows import Document
from provisioner.telemetry.status_model import StatusModel


def narrow_status(whole: StatusModel, *, pool: str = "", template: str = "", request: str = "") -> StatusModel:
    """Return the part of a status that concerns this pool, this template and this request. An empty name selects all
    pools, templates or requests."""
    template_id = template or next((one["template"] for one in whole.requests if one["id"] == request), "")
    machines = [row for row in whole.machines if pool in ("", row.pool) and template_id in ("", row.template)]
    pools, templates = {pool, *(row.pool for row in machines)}, {template_id, *(row.template for row in machines)}
    kept = _entries(whole, pools | {""}, templates | {""}, request)
    if pool:
        # a request belongs to each pool in which it has or had machines or waits for machines
        kept["requests"] = [
            one for one in kept["requests"] if pool in {*one["pools"], *(some["pool"] for some in one["missing"])}
        ]
    if pool or template:
        kept["returns"] = []
    return replace(whole, machines=machines, **_named(whole, pools, templates, kept["requests"]), **kept)


def _entries(whole: StatusModel, pools: Set[str], templates: Set[str], request: str) -> dict[str, Any]:
    """Return the items of the status's lists that concern these pools, templates and request.

    An item without a pool concerns all pools. An item without a template concerns all templates, and an item without a
    request all requests.
    """
    names = ("requests", "returns", "refused", "unseen", "failing", "waiting", "stuck", "down", "losses", "pressure")
    return {"unread": [id_ for id_ in whole.unread if request in ("", id_)]} | {
        name: [
            one
            for one in getattr(whole, name)
            if one.get("pool", "") in pools
            and one.get("template", "") in templates
            and request in ("", one.get("id", request))
        ]
        for name in names
    }


def _named(whole: StatusModel, pools: Set[str], templates: Set[str], requests: Sequence[Document]) -> dict[str, Any]:
    """Return the fields of the status whose items each belong to one pool, template or request. Leave out the items
    of pools, templates and requests that are not among the arguments."""
    ids = {one["id"] for one in requests}
    return {
        "forgotten": [one for one in whole.forgotten if one["id"] in ids],
        "pools": [row for row in whole.pools if row.pool in pools],
        "templates": [row for row in whole.templates if row.template in templates],
        "paused": [name for name in whole.paused if name in pools],
        "problems": {name: sentences for name, sentences in whole.problems.items() if name in pools},
    }
