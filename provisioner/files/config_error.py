"""What is wrong in a file that an operator writes, and a configuration that cannot be used, as an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Problem(NamedTuple):
    """One mistake: the file, the setting's path within it (may be empty), and the text.

    The scripts import this at every call: hence no dataclass.
    """

    file: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


class ConfigError(Exception):
    """A configuration that cannot be used; ``problems`` holds every mistake found, its text lists them by file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        for file in dict.fromkeys(problem.file for problem in self.problems):
            mine = [problem for problem in self.problems if problem.file == file]
            yield f"{file}: {len(mine)} problem{'s' if len(mine) > 1 else ''}"
            for problem in mine:
                yield f"  {problem}"
