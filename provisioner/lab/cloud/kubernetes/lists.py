"""Lists, whole and in pages. All pages of a list show the state of one moment."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass

from provisioner.lab.cloud.kubernetes.errors import (
    ApiError,
    Cause,
    Json,
    bad_request,
    expired,
    invalid,
    too_large_version,
)
from provisioner.lab.cloud.kubernetes.store import Match, Store, Stored

_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


@dataclass(frozen=True)
class ListOptions:
    """The query of a list or watch."""

    limit: int = 0
    continue_token: str = ""
    version: int | None = None
    """The requested resourceVersion. None: the list must show the most recent state; 0: any state will do."""
    version_match: str = ""
    bookmarks: bool = False
    timeout: float | None = None
    initial_events: bool | None = None

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> ListOptions:
        """Parse a URL's query. Raises 400 for a value of the wrong form, 422 for values that contradict each other."""
        options = cls(
            limit=_limit(query),
            continue_token=query.get("continue", ""),
            version=_whole(query, "resourceVersion"),
            version_match=query.get("resourceVersionMatch", ""),
            bookmarks=_flag(query, "allowWatchBookmarks") or False,
            timeout=_whole(query, "timeoutSeconds"),
            initial_events=_flag(query, "sendInitialEvents"),
        )
        causes = list(options._causes(watch=_flag(query, "watch") or False))
        if causes:
            raise invalid("ListOptions.meta.k8s.io", "", causes)
        return options

    def _causes(self, *, watch: bool) -> list[Cause]:
        causes = []
        if self.initial_events is not None and not watch:
            causes.append(_forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
        if self.initial_events is not None and self.version_match != "NotOlderThan":
            words = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            causes.append(_forbidden("resourceVersionMatch", words))
        if self.initial_events is None and self.version_match and (self.version is None or watch):
            words = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            lone = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            causes.append(_forbidden("resourceVersionMatch", words if watch else lone))
        if self.version_match == "Exact" and self.version == 0:
            words = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            causes.append(_forbidden("resourceVersionMatch", words))
        if self.continue_token and self.version_match:
            words = "resourceVersionMatch is forbidden when continue is provided"
            causes.append(_forbidden("resourceVersionMatch", words))
        return causes


def _forbidden(field: str, words: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden: {words}")


def _limit(query: Mapping[str, str]) -> int:
    """Return the largest number of objects in a page; 0: all objects."""
    text = query.get("limit", "") or "0"
    if not text.removeprefix("-").isdecimal():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return max(0, int(text))


def _whole(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        words = f'{name}: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: {words}" if name == "resourceVersion" else words)
    return int(text)


def _flag(query: Mapping[str, str], name: str) -> bool | None:
    text = query.get(name)
    return None if text is None else text.lower() in ("1", "true", "t", "")


def list_page(
    store: Store, namespace: str, match: Match | None, options: ListOptions, now: float, ttl: float
) -> tuple[list[Stored], Json]:
    """Return a page and the list's metadata. ``now``: simulated time. All pages must be read within ``ttl`` seconds."""
    if options.continue_token:
        version, begin, objects, number = _resume(store, options.continue_token, now, ttl)
    else:
        _check_version(store, options)
        version, begin, number = store.version, 0, 0
        objects = store.select(namespace, match)
    limit = 0 if options.version == 0 else options.limit
    end = begin + limit if limit else len(objects)
    metadata: Json = {"resourceVersion": str(version)}
    if end < len(objects):
        number = number or store.keep(objects)
        metadata["continue"] = _token(number, end, now)
        if match is None:
            metadata["remainingItemCount"] = len(objects) - end
    return objects[begin:end], metadata


def _check_version(store: Store, options: ListOptions) -> None:
    if options.version is None:
        return
    if options.version > store.version:
        raise too_large_version(options.version, store.version)
    if options.version_match == "Exact" and options.version != store.version:
        raise expired(f"The resourceVersion for the provided list is too old: {options.version}")


def _token(number: int, begin: int, taken: float) -> str:
    text = json.dumps({"v": "meta.k8s.io/v1", "list": number, "begin": begin, "taken": taken})
    return base64.urlsafe_b64encode(text.encode()).decode()


def _resume(store: Store, token: str, now: float, ttl: float) -> tuple[int, int, list[Stored], int]:
    try:
        document = json.loads(base64.urlsafe_b64decode(token))
        number, begin, taken = int(document["list"]), int(document["begin"]), float(document["taken"])
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise _not_a_token(error) from error
    kept = store.kept(number)
    if kept is None or now - taken > ttl:
        raise expired(_EXPIRED)
    version, objects = kept
    return version, begin, objects, number


def _not_a_token(error: Exception) -> ApiError:
    return bad_request(f"continue key is not valid: {error}")
