"""Find faults in a Terraform module without Terraform and its providers.

The faults are missing arguments, arguments or blocks that the Google provider does not have, and references without a
target.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import hcl2

from tests.support.checks.google_provider import load

META = frozenset({"count", "depends_on", "for_each", "lifecycle", "provider", "timeouts", "provisioner", "connection"})
"""Arguments and blocks that Terraform itself accepts in every resource."""

OWN = re.compile(r"__\w+__")
"""Keys that the parser adds to a block."""

_REFERENCE = re.compile(r"(?<![\w.\"/-])(?:(data)\.)?(google_\w+)\.(\w+)(?:\[[^]]*\])?(?:\.(\w+))?")
_NAME = re.compile(r"(?<![\w.])(var|local|module)\.(\w+)(?:\.(\w+))?")
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")

Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a module."""

    name: str
    required: bool
    described: bool


class Module:
    """The files of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = sorted(directory.glob("*.tf"))
        self._parsed = [hcl2.loads(file.read_text()) for file in self.files]

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """Return the variables by name."""
        return {
            name: Variable(name, "default" not in body, bool(plain(body.get("description", ""))))
            for name, body in self._blocks("variable")
        }

    @cached_property
    def outputs(self) -> dict[str, Block]:
        """Return the outputs by name."""
        return dict(self._blocks("output"))

    @cached_property
    def locals(self) -> dict[str, Any]:
        """Return the expression of each local value, by name."""
        return {
            plain(name): value
            for document in self._parsed
            for body in document.get("locals", ())
            for name, value in body.items()
        }

    @cached_property
    def calls(self) -> dict[str, Block]:
        """Return the blocks that call other modules, by name."""
        return dict(self._blocks("module"))

    @cached_property
    def resources(self) -> dict[tuple[str, str], Block]:
        """Return the resources by type (``data.…`` for a data source) and name."""
        return {
            (prefix + plain(type_), plain(name)): body
            for document in self._parsed
            for word, prefix in (("resource", ""), ("data", "data."))
            for block in document.get(word, ())
            for type_, named in block.items()
            if not OWN.fullmatch(type_)
            for name, body in named.items()
        }

    @cached_property
    def text(self) -> str:
        """Return all files without comments."""
        return "\n".join(_COMMENT.sub("", file.read_text()) for file in self.files)

    def problems(self) -> list[str]:
        """Return every mistake in the module."""
        return [*self._arguments(), *self._references(), *self._names(), *self._called()]

    def default(self, name: str) -> str:
        """Return the default of a variable whose default is a text."""
        return plain(dict(self._blocks("variable"))[name]["default"])

    def of(self, type_: str) -> dict[str, Block]:
        """Return the resources of one type, by name."""
        return {name: body for (its, name), body in self.resources.items() if its == type_}

    def _blocks(self, word: str) -> Iterator[tuple[str, Block]]:
        for document in self._parsed:
            for block in document.get(word, ()):
                for name, body in block.items():
                    if not OWN.fullmatch(name):
                        yield plain(name), body

    def _arguments(self) -> Iterator[str]:
        schema = load()
        for (type_, name), body in self.resources.items():
            if type_ not in schema:
                yield f"{type_}.{name}: the schema lacks this resource: add it to USED in google_provider.py"
            else:
                yield from _wrong(f"{type_}.{name}", body, schema[type_]["arguments"], META)

    def _references(self) -> Iterator[str]:
        schema = load()
        for data, type_, name, attribute in _REFERENCE.findall(self.text):
            kind = f"data.{type_}" if data else type_
            if (kind, name) not in self.resources:
                yield f"{kind}.{name}: there is no such resource"
            elif attribute and attribute not in schema[kind]["arguments"]:
                yield f"{kind}.{name}.{attribute}: {kind} has no such attribute"

    def _names(self) -> Iterator[str]:
        known = {"var": self.variables, "local": self.locals, "module": self.calls}
        used = {(kind, name) for kind, name, _ in _NAME.findall(self.text)}
        for kind, name in sorted(used):
            if name not in known[kind]:
                yield f"{kind}.{name}: not declared"
        for kind in ("var", "local"):
            for name in sorted(set(known[kind]) - {one for its, one in used if its == kind}):
                if not OWN.fullmatch(name):
                    yield f"{kind}.{name}: declared, and used nowhere"

    def _called(self) -> Iterator[str]:
        for name, body in self.calls.items():
            called = Module(self.directory / plain(body["source"]))
            given = {key for key in body if not OWN.fullmatch(key)} - META - {"source", "providers", "version"}
            yield from given_problems(f"module.{name}", given, called)
            for output in {output for kind, its, output in _NAME.findall(self.text) if (kind, its) == ("module", name)}:
                if output and output not in called.outputs:
                    yield f"module.{name}.{output}: the module has no such output"


def given_problems(where: str, given: set[str], called: Module) -> Iterator[str]:
    """Yield the faults in the variables that are set for a called module."""
    for name in sorted(given - set(called.variables)):
        yield f"{where}: {name}: the module has no such variable"
    for variable in called.variables.values():
        if variable.required and variable.name not in given:
            yield f"{where}: {variable.name} is missing"


def overlay_values(module: Module) -> set[str]:
    """Return the names of the values in a module's output ``overlay_values``."""
    return set(re.findall(r"\b(\w+) = ", module.outputs["overlay_values"]["value"]))


def plain(text: Any) -> str:
    """Return a name or a text without its quotes."""
    return str(text).strip('"')


def _wrong(where: str, body: Block, arguments: Mapping[str, Any], meta: frozenset[str]) -> Iterator[str]:
    """Yield the faults in a block and in its inner blocks, including blocks that ``dynamic`` makes."""
    given = {name: value for name, value in body.items() if not OWN.fullmatch(name) and name not in meta}
    dynamic = {plain(name): made["content"] for one in given.pop("dynamic", ()) for name, made in one.items()}
    for name in sorted(given.keys() | dynamic.keys()):
        if name not in arguments or arguments[name].get("computed"):
            yield f"{where}: {name}: no such argument"
            continue
        inner = arguments[name].get("block")
        bodies = [*(_bodies(given.get(name))), *dynamic.get(name, ())]
        if inner is None and bodies:
            yield f"{where}: {name}: an argument, written as a block"
        elif inner is not None and not bodies:
            yield f"{where}: {name}: a block, written as an argument"
        else:
            for each in bodies:
                yield from _wrong(f"{where}.{name}", each, inner, frozenset())
    for name, argument in arguments.items():
        if argument["required"] and name not in given and name not in dynamic:
            yield f"{where}: {name} is missing"


def _bodies(value: Any) -> list[Block]:
    """Return the blocks in ``value``, as the parser returned it; empty if ``value`` is an argument's value."""
    return [one for one in value if isinstance(one, dict) and "__is_block__" in one] if isinstance(value, list) else []
