"""The commands that README and docs contain.

A block fenced as ``sh``, ``bash`` or ``shell`` has only commands. In other blocks, a command stands after ``$``.
Without ``$``, a line of an unmarked or indented block is a command if it begins with one of our programs. Within a
sentence, text in backticks is a command by the same rule.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"(?:provisioner|make|hf_scripts/\w+\.sh|deploy/[\w/-]+\.sh)(?= |$)")
FENCE = re.compile(r"^\s*```(\w*)")
HERE = re.compile(r"<<'(\w+)'$")
"""Start of a here-document, with the word that ends the document."""
SYNTAX = re.compile(r"[\[\]…<]|(?<! )\||\|(?! )")
"""Characters that only a description of a command's form has, for optional parts and choices. A pipe in a command has a
space on either side."""
PLACEHOLDER = re.compile(r"\b(?:[A-Z]{2,}|N)\b")


@dataclass(frozen=True)
class Command:
    """A command, and its place in a page."""

    page: str
    line: int
    text: str
    inline: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"

    @property
    def is_form(self) -> bool:
        """Return True if the text only describes the form of a command. Such a text cannot be run."""
        return self.inline and bool(SYNTAX.search(self.text) or PLACEHOLDER.search(_unquoted(self.text)))

    @property
    def programs(self) -> list[str]:
        """Return the first word of each command in a line."""
        return [words[0] for words in self.calls]

    @property
    def calls(self) -> list[list[str]]:
        """Return the words of each command in a line. The text in ``$(…)`` counts as another command."""
        calls: list[list[str]] = [[]]
        for text in [_outside(self.text), *re.findall(r"\$\(([^()]*)\)", self.text)]:
            calls.append([])
            for word in _words(text):
                if set(word) <= set("&|;()"):
                    calls.append([])
                elif calls[-1] or not re.fullmatch(r"\w+=.*", word):
                    calls[-1].append(word)
        return [call for call in calls if call]


def blocks_of(text: str) -> list[str]:
    """Return every block of commands of a page. The lines of a block are typed together."""
    return re.findall(r"```(?:sh|bash|shell)\n(.*?)```", text, re.DOTALL)


def pages() -> list[Path]:
    """Return README and every page of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[Command]:
    """Return all commands of all pages, in their order."""
    return [command for page in pages() for command in of(page.name, page.read_text())]


def of(page: str, text: str) -> Iterator[Command]:
    """Yield the commands in the text of a page: first the commands in blocks, then the commands within sentences."""
    fence: str | None = None
    block: list[tuple[int, str]] = []
    prose: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        found = FENCE.match(line)
        prose.append("" if found or fence is not None or line.startswith("    ") else line)
        if found and fence is None:
            fence, block = found.group(1), []
        elif found:
            yield from _of_block(page, fence or "", block)
            fence = None
        elif fence is not None:
            block.append((number, line.strip()))
        elif line.startswith("    ") and OURS.match(line.strip()):
            yield Command(page, number, _bare(line))
    yield from _of_prose(page, "\n".join(prose))


def _of_prose(page: str, prose: str) -> Iterator[Command]:
    """Yield the commands in backticks. A command may continue on the next line."""
    for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", prose):
        inline = " ".join(found.group(1).split())
        if OURS.match(inline) and " " in inline:
            yield Command(page, prose[: found.start()].count("\n") + 1, inline, inline=True)


def _of_block(page: str, language: str, block: list[tuple[int, str]]) -> Iterator[Command]:
    """Yield the commands of a fenced block.

    A line that ends with a backslash or within quotes continues on the next line.
    """
    typed = [(number, line[2:]) for number, line in block if line.startswith("$ ")]
    if language in ("sh", "bash", "shell"):
        typed = block
    elif not typed and language == "":
        typed = [(number, line) for number, line in block if OURS.match(line)]
    whole = ends = ""
    for number, line in typed:
        if ends:
            ends = "" if line == ends else ends
            continue
        whole += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        if _bare(whole).count("'") % 2:
            whole += "\n"
            continue
        if bare := _bare(whole):
            yield Command(page, number, bare)
        ends = "".join(HERE.findall(whole))
        whole = ""


def _bare(line: str) -> str:
    """Return the line without its comment."""
    return re.sub(r"(?:^|\s+)# .*$", "", line.strip())


def _unquoted(text: str) -> str:
    return re.sub(r"\"[^\"]*\"|'[^']*'", "", text)


def _outside(text: str) -> str:
    return re.sub(r"\$\([^()]*\)", "$", text)


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars="&|;()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError as error:
        raise AssertionError(f"a shell would not take {text!r}: {error}") from error
