"""Types of settings: a type says what a value has to be, as a check and as words. No I/O, no clock, no logger."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationInfo

from provisioner.schema.problems import Expects

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""What Kubernetes takes as a label's value: ids and names become labels of the pods."""


def _placed(written: object, info: ValidationInfo) -> object:
    """A path as written, from the configuration's directory, if the validation is told of one."""
    return info.context.beside(written) if info.context else written


def _nameable(path: Path) -> Path:
    """A path that a file can have; ValueError for an empty one, which Python takes for ".", and for one with a NUL."""
    if path == Path() or "\0" in str(path):
        raise ValueError("no file has this path")
    return path


Count = Annotated[int, Field(ge=1), Expects("a whole number ≥ 1")]
Cap = Annotated[int | None, Field(ge=1), Expects("a whole number ≥ 1")]
TotalCap = Annotated[int | None, Field(ge=1, le=100_000), Expects("a whole number from 1 to 100000")]
Duration = Annotated[float, Field(gt=0), Expects("a number > 0")]
DurationOrZero = Annotated[float, Field(ge=0), Expects("a number ≥ 0")]
Lifetime = Annotated[float | None, Field(gt=0), Expects("a number > 0")]
OptionalDuration = Annotated[float | None, Field(ge=0), Expects("a number ≥ 0")]
Price = Annotated[float | None, Field(ge=0), Expects("a number ≥ 0")]
EarlySeconds = Annotated[float, Field(ge=0, le=3600), Expects("a number ≥ 0, at most 3600")]
MassLossSeconds = Annotated[float, Field(ge=0, le=90), Expects("a number ≥ 0, at most 90")]
Share = Annotated[float, Field(gt=0, le=1), Expects("a number > 0, at most 1")]
Switch = Annotated[bool, Expects("true or false")]
Text = Annotated[str, StringConstraints(min_length=1), Expects("a text")]
OptionalText = Annotated[str | None, StringConstraints(min_length=1), Expects("a text")]
Label = Annotated[
    str,
    StringConstraints(pattern=rf"^{LABEL_VALUE.pattern}$"),
    Expects("1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"),
]
PlaceName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z]([-a-z0-9.:]*[a-z0-9])?$"),
    Expects("lower-case letters, digits and '-', beginning with a letter"),
]
File = Annotated[Path, Field(strict=False), BeforeValidator(_placed), AfterValidator(_nameable), Expects("a path")]
OptionalFile = File | None
Endpoint = Annotated[
    str | None,
    StringConstraints(pattern=r"^https?://[^\s/]+"),
    Expects("an address beginning with http:// or https://"),
]
