"""The mistakes in a file that an operator writes, and the error for an unusable configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Problem(NamedTuple):
    """A mistake in a configuration file: the file, the path of the setting (may be empty), and the text.

    The class is a NamedTuple, because the scripts import this module at every call, and a dataclass takes longer to
    import.
    """

    file: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


class ConfigError(Exception):
    """Raised for an unusable configuration. ``problems`` contains every mistake; the error's text lists them by
    file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        for file in dict.fromkeys(problem.file for problem in self.problems):
            mine = [problem for problem in self.problems if problem.file == file]
            yield f"{file}: {len(mine)} problem{'s' if len(mine) > 1 else ''}"
            yield from (f"  {problem}" for problem in mine)
