"""What is wrong in a file that people write, as a value."""

from __future__ import annotations

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
