"""Amounts of resources, such as ``500m`` and ``8Gi``: their form, and the limits of a container's requests. The
functions have no side effects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction

from provisioner.lab.cloud.kubernetes.errors import Cause, Json, bad_request, bad_value

_FORM = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)")
_FORM_WORDS = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

_UNITS: Mapping[str, Fraction] = {
    **{unit: Fraction(1000) ** power for power, unit in enumerate(("n", "u", "m", "", *"kMGTPE"), start=-3)},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}
"""Factor of each suffix."""


def check_amounts(kind: str, resources: Json) -> None:
    """Raise 400 if an amount has the wrong form."""
    for part in ("requests", "limits"):
        for value in (resources.get(part) or {}).values():
            if not _FORM.fullmatch(str(value)):
                raise bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {_FORM_WORDS}')


def amount_causes(where: str, resources: Json) -> Iterator[Cause]:
    """Yield the mistakes in a container's requests and limits. Before this call, ``check_amounts`` must have accepted
    the form of the amounts."""
    limits = resources.get("limits") or {}
    for part in ("limits", "requests"):
        for name, value in (resources.get(part) or {}).items():
            if amount(value) < 0:
                yield bad_value(f"{where}.{part}[{name}]", str(value), "must be greater than or equal to 0")
            elif part == "requests" and name in limits and amount(value) > amount(limits[name]):
                words = f"must be less than or equal to {name} limit of {limits[name]}"
                yield bad_value(f"{where}.requests", str(value), words)


def amount(text: object) -> Fraction:
    """Return the value of a Kubernetes quantity such as ``500m`` or ``2Gi``. Raise ValueError if the text is not a
    quantity."""
    parts = _FORM.fullmatch(str(text))
    if parts is None:
        raise ValueError(f"not an amount: {text!r}")
    number, exponent, suffix = parts.groups()
    return Fraction(number + (exponent or "")) * _UNITS[suffix or ""]
