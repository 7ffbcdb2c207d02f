"""A configuration that cannot be used, as an error; apart, as no more than this is needed to catch it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from provisioner.files.problem import Problem


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
