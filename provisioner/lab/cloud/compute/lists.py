"""Pages of lists: ``filter``, ``orderBy``, ``maxResults``, ``pageToken``, and their faults.

Fault modes. Targets: the place (a zone or region), the method such as ``instances.list``, or ``<place>/<method>``. For
listManagedInstances, the place is the MIG. In an aggregated list, a fault may strike each zone and region separately.

* ``list_lag``: the list shows the state ``seconds`` (10, at most 120) ago
* ``partial_list``: a part of the items is missing, with a warning of ``code`` (UNREACHABLE). A page keeps the fraction
  ``kept`` (0.5) of its items. An aggregated list keeps no item of a zone that the fault strikes.
* ``empty_page``: a page without items, whose nextPageToken repeats the page
* ``moved_page``: the list changed between two pages. Each page after the first lacks its first ``items`` (1) entries.
  If ``items`` is negative, the page instead repeats as many entries of the previous page.
* ``token_expired``: a call with a pageToken gets 400
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter

from provisioner.lab.cloud.compute.filter import Predicate, compile_filter
from provisioner.lab.cloud.compute.operations import BASE, ApiError, Document, timestamp
from provisioner.lab.cloud.compute.resource_documents import nothing_in, unreachable
from provisioner.lab.cloud.world import World

MAX_PAGE = 500
"""Maximum number of items of a page, and the default."""

_END = 10**14
"""Epoch milliseconds that are later than the creation of any resource in the embedded cloud."""

_MEMBERS = {
    "listManagedInstances": "ManagedInstance",
    "listPerInstanceConfigs": "PerInstanceConfig",
    "listErrors": "InstanceManagedByIgmError",
    "listInstances": "InstanceWithNamedPorts",
}
"""The message (of ``schema.py``) that describes the items in a list about a group, by method. For any other list, the
message's name comes from the name of the collection."""

Source = Callable[[str, float], Iterable[tuple[str, Document]]]
"""A function that returns the names and documents of a list's items, in order of names. Its arguments are the name
after which the items begin, and the age in seconds of the state that the documents show."""


@dataclass(frozen=True)
class ListCall:
    """A call of a list method."""

    world: World
    method: str
    path: str
    """Relative URL of the list."""
    place: str
    """Name of the zone, region or MIG whose items are listed."""
    query: Mapping[str, str]
    base: str
    """The address that begins every URL in the response."""

    @property
    def resource(self) -> str:
        """The message of ``schema.py`` that describes the items of the list."""
        collection, _, verb = self.method.rpartition(".")
        name = re.sub(r"^(?:region|zone|global)(?=[A-Z])", "", collection)
        return _MEMBERS.get(verb) or name[0].upper() + name[1:].removesuffix("s")

    @property
    def predicate(self) -> Predicate | None:
        """The predicate of the call's filter; None if the call has no filter. Raises 400 for a wrong filter."""
        text = self.query.get("filter", "").strip()
        try:
            return compile_filter(text, self.resource, self.base) if text else None
        except ValueError as error:
            raise ApiError(400, "invalid", f"Invalid value for field 'filter': '{text}'. {error}") from error

    @property
    def page_size(self) -> int:
        """The largest number of items in a page. Raises 400 for a wrong ``maxResults``."""
        text = self.query.get("maxResults", "") or str(MAX_PAGE)
        if not text.isdecimal() or int(text) > MAX_PAGE:
            raise ApiError(400, "invalid", f"Invalid value for field 'maxResults': '{text}'. Must be within [0, 500]")
        return int(text) or MAX_PAGE

    def place_in(self, place: str) -> ListCall:
        """Return the same call for one zone or region of an aggregated list."""
        return replace(self, place=place)

    @property
    def targets(self) -> tuple[str, str, str]:
        """The names by which a fault may target the call."""
        return self.place, self.method, f"{self.place}/{self.method}"

    @property
    def lag(self) -> float:
        """Age in seconds of the state that this response shows."""
        fault = self.world.strikes("list_lag", *self.targets)
        return float(fault.params.get("seconds", 10.0)) if fault else 0.0

    def begin(self) -> str:
        """Return the name after which the page begins; empty for the first page. Raise 400 for an invalid pageToken."""
        token = self.query.get("pageToken", "")
        if not token:
            return ""
        try:
            name = base64.b64decode(token, altchars=b"-_", validate=True).decode()
        except ValueError as error:
            raise self._bad_token(token) from error
        if self.world.strikes("token_expired", *self.targets):
            raise self._bad_token(token)
        return name

    @property
    def moved(self) -> int:
        """The number of entries that the fault ``moved_page`` takes from the start of this page. If it is negative,
        this page repeats as many entries of the previous page."""
        fault = self.world.strikes("moved_page", *self.targets) if self.query.get("pageToken") else None
        return int(fault.params.get("items", 1)) if fault else 0

    def _bad_token(self, token: str) -> ApiError:
        return ApiError(400, "invalid", f"Invalid value for field 'pageToken': '{token}'. The token is not valid.")

    def frame(self, kind: str) -> Document:
        """Return the fields with which the document of every list begins. ``kind``: Google's name of the list's
        type."""
        return {"kind": f"compute#{kind}", "id": self.path, "selfLink": BASE + self.path}


def page_of(call: ListCall, kind: str, source: Source, order: bool = True) -> Document:
    """Return a page of a plain list. ``order``: False if the list ignores orderBy."""
    items, last = page_items(call, source, order)
    document = call.frame(kind)
    if call.world.strikes("empty_page", *call.targets):
        return document | {"nextPageToken": token_of(call.begin() or "\0")}
    if fault := call.world.strikes("partial_list", *call.targets):
        items = items[: int(len(items) * float(fault.params.get("kept", 0.5)))]
        document["warning"] = unreachable(call.place, str(fault.params.get("code", "UNREACHABLE")))
    if items:
        document["items"] = items
    if last:
        document["nextPageToken"] = token_of(last)
    return document


def page_items(call: ListCall, source: Source, order: bool = True) -> tuple[list[Document], str]:
    """Return the items of the requested page, and the name of the page's last item. The name is empty if no more items
    follow.

    ``order``: False for a list that ignores the call's ``orderBy``.
    """
    if order:
        source = in_order(call, source)
    begin, size = call.begin(), call.page_size
    moved = call.moved
    if moved < 0:
        before = [name for name, _ in _filtered(source("", call.lag), call.predicate) if name <= begin]
        begin = before[moved - 1] if len(before) > -moved else ""
    entries = _filtered(source(begin, call.lag), call.predicate)
    chosen = list(itertools.islice(entries, max(moved, 0), max(moved, 0) + size + 1))
    last = chosen[size - 1][0] if len(chosen) > size else ""
    return [document for _, document in chosen[:size]], last


def aggregated_page(call: ListCall, kind: str, field: str, scopes: Mapping[str, Source]) -> Document:
    """Return a page of an aggregated list. ``scopes``: the source of each zone and region by scope (``zones/<zone>``),
    in the order of the response."""
    sources = {scope: in_order(call, source) for scope, source in scopes.items()}
    document, items = call.frame(kind), dict[str, Document]()
    begin_scope, _, begin_name = call.begin().partition("\t")
    predicate, room, names = call.predicate, call.page_size, sorted(scopes)
    for scope in names:
        place = call.place_in(scope.rpartition("/")[2])
        if scope < begin_scope:
            continue
        if call.world.strikes("partial_list", *place.targets):
            items[scope] = {"warning": unreachable(scope)}
            document.setdefault("unreachables", []).append(scope)
            continue
        begin = begin_name if scope == begin_scope else ""
        chosen = list(itertools.islice(_filtered(sources[scope](begin, place.lag), predicate), room + 1))
        items[scope] = (
            {field: [entry for _, entry in chosen[:room]]} if chosen[:room] else {"warning": nothing_in(scope)}
        )
        if len(chosen) > room:
            last = chosen[room - 1][0] if room else begin
            document["nextPageToken"] = token_of(f"{scope}\t{last}")
            break
        room -= len(chosen)
    return document | {"items": items}


def in_order(call: ListCall, source: Source) -> Source:
    """Return the source in the requested order: by name, or ``creationTimestamp desc``. Raise 400 for any other
    order."""
    order = call.query.get("orderBy", "")
    if order == "creationTimestamp desc":
        return _newest_first(source)
    if order in ("", "name"):
        return source
    words = "Only name and creationTimestamp desc are known."
    raise ApiError(400, "invalid", f"Invalid value for field 'orderBy': '{order}'. {words}")


def _newest_first(source: Source) -> Source:
    """Return a source of the same items, newest first.

    A page follows the order of the items' names. Therefore each item gets a new name, so that the name of the newest
    item comes first.
    """

    def ordered(begin: str, lag: float) -> Iterable[tuple[str, Document]]:
        ages = sorted(((_age(document) + name, document) for name, document in source("", lag)), key=itemgetter(0))
        return [entry for entry in ages if entry[0] > begin]

    return ordered


def _age(document: Document) -> str:
    """Return a text that sorts before the texts of all older documents. A document without a creation time counts as
    the oldest."""
    made = document.get("creationTimestamp") or document.get("insertTime") or timestamp(0.0)
    return f"{_END - round(datetime.fromisoformat(made).timestamp() * 1000):015d} "


def token_of(name: str) -> str:
    """Return an opaque pageToken for the items after ``name``."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def _filtered(source: Iterable[tuple[str, Document]], predicate: Predicate | None) -> Iterator[tuple[str, Document]]:
    return iter(source) if predicate is None else (entry for entry in source if predicate(entry[1]))


def fixed(documents: Mapping[str, Document]) -> Source:
    """Return a source of these documents. The source ignores the requested age, so that its list never lags."""

    def source(begin: str, _lag: float) -> Iterable[tuple[str, Document]]:
        return [(name, documents[name]) for name in sorted(documents) if name > begin]

    return source
