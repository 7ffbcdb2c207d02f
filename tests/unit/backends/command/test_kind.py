"""Settings of a pool of the kind ``command``: each mistake is reported with its setting before the loop begins."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.backends.command.kind import KIND
from provisioner.backends.command.settings import CommandPool
from provisioner.schema.validation import validate

SAMPLES = Path(__file__).parents[4] / "config" / "places"
NAMES = ("slurm", "gridengine", "lsf", "lancium", "spooler")
Change = tuple[str, object]


def sample(name: str) -> dict[str, Any]:
    """Return the settings of a pool of a sample."""
    for file in SAMPLES.glob("*.yaml"):
        pools = yaml.safe_load(file.read_text()).get("pools", {})
        if name in pools:
            body: dict[str, Any] = pools[name]
            return deepcopy(body)
    raise LookupError(name)


def problems(body: dict[str, Any]) -> list[str]:
    """Return the problems of settings, as ``SETTING: TEXT``."""
    _, found = validate(CommandPool, body, "", "", None, name="lsf")
    found += KIND.problems(body, {}, None)  # type: ignore[arg-type]
    return [f"{one.where}: {one.text}" for one in found]


@pytest.mark.parametrize("name", NAMES)
def test_the_samples_have_no_problem(name: str) -> None:
    assert problems(sample(name)) == []


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("delete.argv", ["bkill", "-J", "{name}"], "delete.argv: expected arguments with {id}"),
        ("create.argv", ["bsub", "/opt/pilot"], "create.argv: expected arguments with {name}"),
        ("create.argv", ["bsub", "{name}", "{cluster}"], "create.argv: unknown placeholder {cluster}"),
        ("list.argv", ["bjobs", "{name}"], "list.argv: unknown placeholder {name}"),
        ("create.argv", ["bsub", "{name}", "{"], "create.argv: the braces are unbalanced"),
        ("create.argv", [], "create.argv: expected a list of texts"),
        ("create.argv", "bsub {name}", "create.argv: expected a list of texts"),
        ("create.id", r"Job <\d+>", "create.id: expected a regular expression with the group (?P<id>…)"),
        ("create.id", "(", "create.id: expected a regular expression"),
        ("delete.argv", None, "delete: expected argv, or both pending and running"),
        ("variables.queue", "-f", "variables.queue: a value that begins with '-' would be read as an option"),
        ("template_variables.big", {"cores": "-1"}, "variables.cores: a value that begins with '-'"),
        ("template_variables.big", {"cpus": 1}, "template_variables.big.cpus: unknown variable"),
        ("credentials_variable", "queue", "credentials_variable: arguments are visible"),
        ("list.fields.colour", "C", "list.fields.colour: unknown field"),
        ("list.fields.state", None, "list.fields: the field state is missing"),
        ("list.fields.host", None, "list.fields: a field host or address is missing"),
        ("list.format", "yaml", "list.format: expected 'json' or 'csv' or"),
        ("list.format", "separated", "list.fields: expected the numbers of columns"),
        ("list.format", "lines", "list.match: the group name is missing"),
        ("states.running", ["RUN", "PEND"], "states.running: 'PEND' stands in states.pending, too"),
        ("require_dns", True, "require_dns: jobs have no host names of their own"),
        ("time_out_seconds", 31, "time_out_seconds: expected a number > 0, at most 30"),
    ],
)
def test_a_mistake_is_named(setting: str, value: object, said: str) -> None:
    body = sample("lsf")
    *path, last = setting.split(".")
    section = body
    for name in path:
        section = section.setdefault(name, {})
    section.pop(last, None)
    if value is not None:
        section[last] = value
    assert any(problem.startswith(said) for problem in problems(body)), problems(body)


def test_pools_that_list_the_same_jobs_are_one_place_unless_marks_tell_them_apart() -> None:
    def pool(name: str, body: dict[str, Any]) -> CommandPool:
        return CommandPool.model_validate({"name": name, **body})

    marked = sample("lsf")
    assert pool("a", marked).identity != pool("b", marked).identity
    del marked["list"]["fields"]["mark"]
    assert pool("a", marked).identity == pool("b", marked).identity
