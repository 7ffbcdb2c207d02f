"""The kind ``command``: settings of pools whose machines are made by commands, and their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from provisioner.backends import Backend
from provisioner.backends.command.records import FIELDS, NEEDED
from provisioner.backends.command.settings import CommandPool, placeholders
from provisioner.backends.kind import JobKind, Surroundings
from provisioner.optional_packages import extra
from provisioner.schema.setting_types import Site
from provisioner.schema.validation import Problem, suggestion

KNOWN = frozenset({"prefix", "user"})
OF_CREATE = KNOWN | {"name", "template", "request", "mark"}
OF_DELETE = KNOWN | {"name", "id"}
"""Placeholders that a pool may use in addition to its own variables. ``KNOWN``: in all commands. ``OF_CREATE``: in the
create command. ``OF_DELETE``: in the delete command."""
LAST_JOB = (
    "expected arguments with {id}: without the id of a job, some schedulers end the last job of the user, or all jobs "
    "of a name"
)


class Command(JobKind[CommandPool]):
    """Jobs of any scheduler that has commands."""

    name = "command"
    pool = CommandPool
    distribution = extra("loop")
    docs = "docs/command.md"
    longest_call = 35.0
    """Seconds for a program (30 s) plus the seconds for its end after SIGTERM (5 s)."""

    def factory(self, site: Site) -> Callable[[CommandPool], Backend]:
        """Return a function that makes backends."""
        from provisioner.backends.command.backend import CommandBackend

        return partial(CommandBackend, provisioner=site.id, prefix=site.prefix)

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """Return the problems of ``require_dns``, arguments, variables, fields and states. If a setting has a wrong
        type, only ``require_dns`` is checked."""
        problems = super().problems(body, inherited, around)
        try:
            pool = CommandPool.model_validate({"name": "pool", **body}, context=around)
        except ValueError:
            return problems  # the reader of the settings reports the wrong type
        checks = (_argument_problems, _variable_problems, _list_problems, _state_problems)
        return [*problems, *(problem for check in checks for problem in check(pool))]

    def warnings(self, pool: CommandPool) -> list[str]:
        """Return a warning if machines may share a host."""
        if pool.exclusive:
            return []
        return [
            f"pools.{pool.name}.exclusive: machines may share a host and its name, by which Symphony knows a machine"
        ]


def _argument_problems(pool: CommandPool) -> Iterator[Problem]:
    variables = pool.variables.keys()
    for setting, argv in pool.argvs():
        known = {"create": OF_CREATE, "list": KNOWN}.get(setting.partition(".")[0], OF_DELETE) | variables
        try:
            named = set().union(*map(placeholders, argv))
        except ValueError as error:
            yield Problem("", setting, f"the braces are unbalanced: {error}; write {{{{ for a brace")
            continue
        for name in sorted(named - known):
            yield Problem("", setting, f"unknown placeholder {{{name}}}{suggestion(name, sorted(known))}")
        if setting.startswith("delete") and "id" not in named:
            yield Problem("", setting, LAST_JOB)
        if setting.startswith("create") and "name" not in named:
            yield Problem("", setting, "expected arguments with {name}, by which the machine is found again")
    deletes = pool.delete
    if deletes.argv is None and (deletes.pending is None or deletes.running is None):
        yield Problem("", "delete", "expected argv, or both pending and running")
    if any(f"{{{pool.credentials_variable}}}" in argument for _, argv in pool.argvs() for argument in argv):
        yield Problem("", "credentials_variable", "arguments are visible to all users of the host")
    if "id" not in _groups(pool.create.id):
        yield Problem("", "create.id", "expected a regular expression with the group (?P<id>…)")


def _variable_problems(pool: CommandPool) -> Iterator[Problem]:
    for values in (pool.variables, *pool.template_variables.values()):
        for name, value in values.items():
            if str(value).startswith("-"):
                yield Problem("", f"variables.{name}", "a value that begins with '-' would be read as an option")
    for template, values in pool.template_variables.items():
        for name in values.keys() - pool.variables.keys():
            where = f"template_variables.{template}.{name}"
            yield Problem("", where, "unknown variable" + suggestion(name, [*pool.variables]))


def _list_problems(pool: CommandPool) -> Iterator[Problem]:
    listed = pool.list
    if listed.format == "lines":
        names = _groups(listed.match or "")
        where, how = "list.match", "group"
    else:
        names, where, how = {*listed.fields}, "list.fields", "field"
        for name in sorted(names - {*FIELDS}):
            yield Problem("", f"{where}.{name}", "unknown field" + suggestion(name, FIELDS))
    yield from (Problem("", where, f"the {how} {name} is missing") for name in NEEDED if name not in names)
    if not names & {"host", "address"} and not listed.host:
        yield Problem("", where, f"a {how} host or address is missing: HostFactory needs the address of each machine")
    if listed.format == "separated" and not all(
        column.isdecimal() and int(column) for column in listed.fields.values()
    ):
        yield Problem("", "list.fields", "expected the numbers of columns, as texts, counted from 1")


def _state_problems(pool: CommandPool) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for setting in type(pool.states).model_fields:
        for word in getattr(pool.states, setting):
            if seen.setdefault(word, setting) != setting:
                yield Problem("", f"states.{setting}", f"{word!r} stands in states.{seen[word]}, too")


def _groups(pattern: str) -> set[str]:
    return {*re.compile(pattern).groupindex}


KIND = Command()
