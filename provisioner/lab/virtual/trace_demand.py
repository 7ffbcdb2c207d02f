"""The number of machines that a recorded HostFactory wanted over time, computed from its calls. The functions are
pure."""

from __future__ import annotations

from collections.abc import Sequence

from provisioner.lab.trace import Document, Event, listed

Levels = tuple[tuple[float, int], ...]
"""Pairs of the seconds since the first call and the number of machines wanted from then on."""


def levels_of(events: Sequence[Event], template: str | None) -> Levels:
    """Return the number of wanted machines over time; an empty tuple if no machine was ever wanted.

    ``template``: the template that counts; None for all templates.

    Requests increase the number, and returns decrease it. Refused calls do not count. A trace does not show that a
    machine has failed. If HF requests a replacement, both machines therefore count.
    """
    recording = _Recording()
    levels: dict[float, int] = {}
    level = 0
    for event in events:
        changes = recording.changes(event)
        level = max(0, level + sum(number for of, number in changes if template in (None, of)))
        if changes:
            levels[event.time - events[0].time] = level
    return tuple(levels.items()) if any(levels.values()) else ()


class _Recording:
    """The templates of the requests and machines that the calls have named so far."""

    def __init__(self) -> None:
        self._templates: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        """The request of each machine, by machine."""
        self._returned: set[str] = set()

    def changes(self, event: Event) -> list[tuple[str, int]]:
        """Return how a script's call changes the wanted number: the template, and the number of machines added. This
        number is negative for a return."""
        for request, names in event.machines.items():
            self._requests |= dict.fromkeys(names, request)
        if event.request and event.command == "requestMachines":
            asked = _asked(event.document)
            self._templates[event.request] = asked[0]
            return [asked]
        if event.request and event.command == "requestReturnMachines":
            given = {_name(entry) for entry in listed(event.document, "machines")} - self._returned
            self._returned |= given
            return [(self._template(name), -1) for name in given]
        return []

    def _template(self, machine: str) -> str:
        """Return the template of a machine; empty if it is unknown. Morgan Stanley's traces may list no machines. Then
        the request's id is read from the machine's name, which begins with this id."""
        request = self._requests.get(machine, machine.rpartition("-")[0])
        return self._templates.get(request, "")


def _asked(document: Document) -> tuple[str, int]:
    for entry in listed(document, "template"):
        template, count = entry.get("templateId"), entry.get("machineCount")
        if isinstance(template, str) and isinstance(count, int):
            return template, max(0, count)
    return "", 0


def _name(entry: Document) -> str:
    return str(entry.get("name") or entry.get("machineId") or "")
