"""Removal of secrets from texts and documents for the bundle of ``provisioner doctor``. The functions are pure.

Operators write configuration files. The bundle contains only the values of known settings, which contain no secret.
Programs write all other texts. From these texts, the functions remove everything that resembles a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Any

from provisioner.names import REQUEST_ID_LENGTH, SLOT_DIGITS

WITHHELD = "(withheld)"

HOLDERS = frozenset({"pools", "templates"})
"""Settings whose keys are names that an operator chooses."""

PLAIN = re.compile(r"[\w./:\[\]+-]{0,256}")
"""Pattern of a value that contains no secret: a word, a path, or an address without user, query and space."""

SHORTEST = 5
"""Minimum number of characters of a withheld value that is removed from other texts, too. A shorter value may occur
inside words."""

MOST = 300
"""Maximum number of withheld values that are removed from other texts. The longest values are chosen. With more values,
the removal from a journal would take minutes."""

PEM = re.compile(r"-----BEGIN .*?(?:-----END [^-]*-----|\Z)", re.DOTALL)

VALUE_FOLLOWS = r"[\\\"']*\s*[:=]"
PATH_FOLLOWS = rf"{VALUE_FOLLOWS}\s*[\"']?/"
NAME = (
    r"(?:pass(?!ed|es|ing)|pwd|secret|token|api[-_ ]?key|private|cookie|session|signature|key[-_ ]?data|access[-_ ]?key"
    r"|encryption[-_ ]?key|authorization|(?<![a-z])auth(?![a-z])|user[-_ ]?data|dockercfg|dockerconfig"
    rf"|(?:credentials?|key|kubeconfig)(?!{PATH_FOLLOWS})(?={VALUE_FOLLOWS})"
    rf"|(?<![a-z])(?:pin|(?:string)?data)(?={VALUE_FOLLOWS}))"
)
"""Pattern of the names of secret values. The names ``credentials``, ``key`` and ``kubeconfig`` do not match if a path
follows."""

NAMED = re.compile(
    rf"(?i)(?:{NAME}(?![\w-]*(?:file|path|_seconds)\b)[\w.-]*[\\\"']*\s*(?:[:=>]|%3[ad]|(?<=[\"']),)"
    rf"|--?[\w-]*{NAME}(?![\w-]*file\b)[\w-]*\s+|(?<!\w)(?:-u|--user)[ =]|\bsshpass\s+-p"
    r"|\bpass(?:word|wd|phrase)\s+)\s*"
)
OPENS = re.compile(r"[\"'|>+{\[(\\\s-]*")
"""Pattern of the rest of a line after a secret's name, if the value begins in the next line."""

PAIR = re.compile(r"(?i)\bvalue[\\\"']*\s*[:=]\s*")
"""Pattern of the beginning of a value, if name and value are in separate lines. The value is withheld if a secret's
name is in a line near it."""

MACHINE = rf"[a-z0-9-]*(?<=-)[a-z0-9]{{{REQUEST_ID_LENGTH}}}-[0-9]{{{SLOT_DIGITS}}}(?![\w-])"
"""Pattern of the end of a machine name, after its prefix."""

ISSUED = re.compile(
    r"(?:\b(?:ya29\.|AIza|eyJ|gh[a-z]_|github_pat_|AKIA|GOCSPX-|hv[bs]\.|glpat-|xox[a-z]-)(?=[\w.~+/=-]{8})"
    rf"|(?<![\w-])sk-(?=[\w-]{{20}}))(?!{MACHINE})[\w.~+/=-]+|(?<![\w-])[0-9a-f]{{40}}(?![\w-])"
)
"""Pattern of tokens that begin with an issuer's prefix, and of tokens of 40 hexadecimal digits."""

TOKENS = (
    re.compile(r"(?<=://)[^\s\"'<>]*@"),
    re.compile(r"(?<![\w@])[^\s/:@\"']+:[^\s\"'@]+@(?=[\w\[/])"),
    re.compile(r"\?[\w.-]+=[^\s\"']*"),
    re.compile(r"(?i)\b(?:bearer|basic|negotiate|ntlm)\s+(?=\S*[A-Z0-9=])(?-i:[\w.~+/=-]{6,})"),
    re.compile(r"(?i)\b(?:token|secret)\s+(?=\S*\d)\S+"),
    ISSUED,
    re.compile(r"(?<![\w+=-])(?=[\w+=-]*[A-Z])(?=[\w+=-]*[a-z])(?=[\w+=-]*[0-9])[\w+=-]{24,}"),
)
"""Patterns of logins in addresses, in queries and in HTTP headers, and of random words that mix letters and digits."""

NEVER = re.compile(r"[a-z0-9-]*")
"""Pattern of names of machines and pools, and of plain words, which make up most of a journal. A text that matches is
not secret, unless ``ISSUED`` matches, too."""

QUOTED = re.compile(r"(, got |, column [0-9]+: ).*")
"""Pattern of the end of a message about a wrong setting or file: the words before the quoted value, and the value."""


@lru_cache(maxsize=4096)
def mask_secrets(text: str) -> str:
    """Return a text that a program wrote, without the values that look like a secret."""
    if NEVER.fullmatch(text) and not ISSUED.search(text):
        return text
    lines = PEM.sub(WITHHELD, text).split("\n")
    return "\n".join(_masked(lines))


def _masked(lines: list[str]) -> Iterator[str]:
    """Yield each line without its secrets.

    A line may contain a secret's name. Deeper indented lines and list items below this line belong to the secret.
    """
    named, is_open = None, False
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        if named is not None and not line.strip():
            yield line
            continue
        if named is not None and (is_open or depth > named or line.startswith("- ", depth)):
            is_open = False
            yield " " * depth + WITHHELD
            continue
        found = _secret_in(line, lines[max(0, number - 2) : number + 3])
        named = depth if found else None
        is_open = found is not None and OPENS.fullmatch(line, found.end()) is not None
        shown = line[: found.end()] + WITHHELD if found else QUOTED.sub(rf"\1{WITHHELD}", line)
        for token in TOKENS:
            shown = token.sub(WITHHELD, shown)
        yield shown


def _secret_in(line: str, around: list[str]) -> re.Match[str] | None:
    """Return a match that ends where a secret in the line begins; None if the line has no secret.

    The match usually contains the secret's name. If the name is on another line, the match contains only the word
    ``value`` before the secret. Such a word counts only if a line of ``around`` contains the name of a secret.
    """
    if named := NAMED.search(line):
        return named
    pair = PAIR.search(line)
    return pair if pair and _is_secrets_name("\n".join(around)) else None


def make_remover(values: Collection[str]) -> Callable[[str], str]:
    """Return a function that removes these values from a text. The function also finds the values in JSON's and
    Python's notation."""
    written = {form for value in values for form in (value, json.dumps(value)[1:-1], repr(value)[1:-1])}
    longest_first = sorted((form for form in written if len(form) >= SHORTEST), key=len, reverse=True)[:MOST]
    if not longest_first:
        return lambda text: text
    found = re.compile("|".join(map(re.escape, longest_first)))
    return lambda text: found.sub(WITHHELD, text)


def cleaned(value: Any) -> Any:
    """Return a document that the provisioner wrote, with secrets removed from its texts. A value whose key is a
    secret's name is removed."""
    if isinstance(value, dict):
        return {
            mask_secrets(str(key)): WITHHELD if _is_secrets_name(str(key)) else cleaned(part)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [cleaned(part) for part in value]
    return mask_secrets(value) if isinstance(value, str) else value


@lru_cache(maxsize=4096)
def _is_secrets_name(text: str) -> bool:
    return re.search(NAME, text, re.IGNORECASE) is not None


def harmless(value: Any, known: Collection[str], withheld: set[str], *, key: str = "", is_known: bool = False) -> Any:
    """Return a document that an operator wrote, with only the values of the ``known`` settings. A known setting's value
    that resembles a secret is also left out.

    Add each value that is left out to ``withheld``. ``key``: the key of ``value``. ``is_known``: True if this key is
    known.
    """
    if isinstance(value, dict):
        return {
            name if PLAIN.fullmatch(name) else WITHHELD: harmless(part, known, withheld, key=name, is_known=ours)
            if ours or (key in HOLDERS and isinstance(part, dict))
            else _withhold(part, withheld)
            for name, part, ours in ((str(name), part, name in known) for name, part in value.items())
        }
    if isinstance(value, list):
        return [harmless(part, known, withheld, is_known=is_known) for part in value]
    named = f"{key}: {value}"
    is_plain = not isinstance(value, str) or (PLAIN.fullmatch(value) and mask_secrets(named) == named)
    return value if is_known and is_plain else _withhold(value, withheld)


def _withhold(value: Any, withheld: set[str]) -> str:
    """Add each text and number in a value to ``withheld``. Return the text that replaces the value."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        _withhold(part, withheld)
    if not isinstance(value, dict | list | bool | None):
        withheld.add(str(value))
        withheld.update(str(value).split("\n"))
    return WITHHELD
