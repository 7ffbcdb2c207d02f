"""YAML texts that operators write, read strictly and safely. The functions use no clock and do not log.

Strictly means that a repeated key is a mistake. Safely means that any text gives a document or a YAMLError within a
short time, even a text that is nested deeper than Python's stack, or aliases that stand for a billion values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.error import Mark, MarkedYAMLError

from provisioner.files.safe_open import read_regular

LARGEST = 256 * 1024
"""Maximum size of a file in bytes. A thousand pools take half of this size.

A larger file would stop the loop for many seconds.
"""

DEEPEST = 60
"""Maximum depth of a document in levels. A pod's manifest has twenty levels, and Python's stack allows some hundred."""

MOST_VALUES = 20_000
"""Maximum number of values in a document, where each alias counts with all its values. Each of a thousand pools may
have twenty values."""

INTEGER_BITS = 64
"""Maximum size of a whole number in bits. JSON readers, for example Kubernetes, accept no larger numbers."""

KINDS = {"int": "whole number", "float": "number", "bool": "truth value", "timestamp": "date", "str": "text"}
"""Plain names for YAML's types of values. A type that is missing here already has a plain name."""

TOO_DEEP = f"nested more than {DEEPEST} levels deep, or an alias leads back to the value that contains it"


def read_text(path: Path) -> str:
    """Return the text of a regular file.

    Raises OSError, or ValueError if the file is not UTF-8 or the path is not valid.
    """
    return read_regular(str(path), most=LARGEST).decode("utf-8-sig")


def format_read_error(error: OSError | ValueError) -> str:
    """Return why ``read_text`` failed. The text omits the name of the file, because callers put the name before it."""
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return f"line {line} is no UTF-8 (byte 0x{error.object[error.start]:02x}); save the file as UTF-8"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def parse(text: str) -> tuple[Any, list[tuple[str, str]]]:
    """Return the document in a YAML text, and (path, reason) for each repeated key. Raises only YAMLError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, []
        _measure(node, 1, {})
        repeated = list(_repeated_keys(node, "", set()))
        return loader.construct_document(node), repeated
    except RecursionError as error:
        raise _mistake(TOO_DEEP, loader.get_mark()) from error
    except (ValueError, OverflowError) as error:  # an escape or a version with a number too large for Python
        raise _mistake(f"not a number that can be read: {error}", loader.get_mark()) from error
    finally:
        loader.dispose()


def format_syntax_error(error: yaml.YAMLError) -> str:
    """Return the error of the YAML parser on one line, with line and column."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
    reason = " ".join(reason.split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {reason}" if mark else f"not YAML: {reason}"


def join(*parts: object) -> str:
    """Return a setting's path: the parts that are not empty, joined by dots."""
    return ".".join(str(part) for part in parts if str(part))


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with better errors.

    If a value cannot be constructed, the error names line and column, as for any other mistake.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()  # fails for half a character ("\ud800"), which cannot be printed or name a file
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise _mistake(f"this is no {KINDS.get(kind, kind)}", node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            raise _mistake(f"a whole number of more than {INTEGER_BITS} bits", node.start_mark)
        return value


def _mistake(reason: str, mark: Mark) -> MarkedYAMLError:
    return ConstructorError(None, None, reason, mark)


def _measure(node: yaml.Node, level: int, measured: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the number of values and the number of levels in a node. An alias counts with all its values.

    Raises YAMLError if either number is too high, or if a node contains itself. ``measured``: both numbers of each node
    that was measured before, by the node's ``id``.
    """
    if id(node) not in measured:
        if level > DEEPEST:
            raise _mistake(TOO_DEEP, node.start_mark)
        parts = [_measure(part, level + 1, measured) for part in _parts(node)]
        measured[id(node)] = 1 + sum(size for size, _ in parts), 1 + max((height for _, height in parts), default=0)
    size, height = measured[id(node)]
    if level + height - 1 > DEEPEST:
        raise _mistake(TOO_DEEP, node.start_mark)
    if size > MOST_VALUES:
        raise _mistake(f"more than {MOST_VALUES} values, aliases written out", node.start_mark)
    return size, height


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _repeated_keys(node: yaml.Node, where: str, visited: set[int]) -> Iterator[tuple[str, str]]:
    """Yield the path and the reason of each repeated key. Each node is visited once, even if aliases refer to it."""
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            path = join(where, key.value if isinstance(key.value, str) else "?")
            line = key.start_mark.line + 1
            if path in lines:
                yield path, f"given twice, in lines {lines[path]} and {line}"
            lines.setdefault(path, line)
            yield from _repeated_keys(value, path, visited)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _repeated_keys(value, join(where, number), visited)
