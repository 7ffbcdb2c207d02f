"""Measure the house: its rooms, its floors, the imports between them, and the parts that are too big.

A room is ``hf_scripts``, or a module or package directly in ``provisioner``. For a kind of place, the room is in
``provisioner.backends``. A floor imports only floors below it. The core is all code except the laboratory and the tests
for kinds.

``make house`` prints a table. It fails if a limit or a budget of ``[house]`` in ``setup.cfg`` is exceeded. A missed
goal is only shown.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Mapping, Set
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import grimp
from radon.complexity import cc_visit
from rich.console import Console
from rich.table import Table

from provisioner.model import Limits, Memory, Slot
from tests import words
from tests.support.entered import count, ways

ROOT = Path(__file__).parent.parent
PACKAGES = ("provisioner", "hf_scripts")
KINDS = "provisioner.backends"
APART = ("provisioner.lab", "provisioner.testing")
ENTRIES = frozenset({"provisioner", "provisioner.__main__"})
"""Modules that belong to no room: the version, and the module that calls the command line."""

ROOMS, FLOORS, CLASS_LINES, COMPLEXITY, PARAMETERS = 25, 8, 200, 15, 6
"""Limits."""

SMALL, SMALL_GOAL = 60, 15
"""A module with fewer lines is probably too small. The second number is the goal: the largest number of such modules.
"""
LARGE, LARGE_GOAL = 300, 10
"""A module with more lines is probably too large. The second number is the goal: the largest number of such modules."""
FIELDS_GOAL, PROTOCOLS_GOAL = 12, 8
ENTERED_GOALS = {
    "first cycle of a request": (40, 280),
    "idle cycle": (12, 50),
    "requestMachines": (15, 110),
    "getRequestStatus": (12, 70),
}
"""Goals: the largest number of modules and functions that each part of a request's way enters."""


@dataclass(frozen=True)
class Size:
    """A class or function that is bigger than the goal."""

    name: str
    size: int


@dataclass(frozen=True)
class House:
    """The files under ``PACKAGES``, and their imports."""

    files: Mapping[str, Path]
    """The file of each module."""
    imports: Set[tuple[str, str]]
    """Pairs of an importing and an imported module."""

    @cached_property
    def core(self) -> Mapping[str, Path]:
        """The files of the core: all files except those of the laboratory and of the tests for kinds."""
        return {module: path for module, path in self.files.items() if not module.startswith(APART)}

    @cached_property
    def rooms(self) -> Set[str]:
        return {room(module) for module in self.files} - ENTRIES

    @cached_property
    def arrows(self) -> Set[tuple[str, str]]:
        """Pairs of rooms, of which the first imports the second."""
        pairs = {(room(importer), room(imported)) for importer, imported in self.imports}
        return {(one, other) for one, other in pairs if one != other and not {one, other} & ENTRIES}

    def circles(self) -> list[str]:
        """Return the rooms that import themselves through other rooms."""
        return sorted(one for one in self.rooms if one in reached(one, self.arrows))

    def circles_inside(self) -> list[list[str]]:
        """Return groups of modules of the core. The modules of a group are in one room and import each other."""
        inside = {(one, other) for one, other in self.imports if room(one) == room(other) and one in self.core}
        below = {one: reached(one, inside) for one, _ in inside}
        mutual = {one: frozenset(other for other in below[one] if one in below.get(other, ())) for one in below}
        return sorted(sorted(circle) for circle in {*mutual.values()} if circle)

    def floors(self) -> list[list[str]]:
        """Return the rooms of each floor, the lowest floor first. Each room is above all rooms that it imports. Rooms
        that import each other in a circle have no floor."""
        left, floors = set(self.rooms), []
        while ready := {one for one in left if not any(a == one and b in left for a, b in self.arrows)}:
            floors.append(sorted(ready))
            left -= ready
        return floors


def reached(start: str, arrows: Set[tuple[str, str]]) -> Set[str]:
    """Return all rooms or modules that ``start`` imports, directly or through others."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        here = ahead.pop()
        new = {other for one, other in arrows if one == here} - seen
        seen |= new
        ahead += new
    return seen


def house() -> House:
    """Return the files and imports of the packages in this repository."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=False)
    files = {}
    for module in graph.modules:
        path = ROOT / module.replace(".", "/")
        files[module] = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    imports = {(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)}
    return House(files, imports)


def room(module: str) -> str:
    """Return the room of a module."""
    parts = module.split(".")
    if module.startswith(f"{KINDS}.") and (ROOT / "/".join(parts[:3])).is_dir():
        return ".".join(parts[:3])
    return ".".join(parts[:2]) if parts[0] == "provisioner" else parts[0]


NO_CODE = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)


def code_lines(path: Path) -> int:
    """Count the lines that are neither empty, nor only a comment, nor a docstring."""
    text = path.read_text()
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - set(_docstring_lines(ast.parse(text))))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node, _ in _docstrings(tree):
        yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _docstrings(tree: ast.Module) -> Iterator[tuple[ast.Expr, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node, node.value.value


def big_classes(paths: Mapping[str, Path]) -> list[Size]:
    """Return the classes with more lines than the goal."""
    return [
        Size(f"{module}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for module, path in paths.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and (node.end_lineno or node.lineno) - node.lineno + 1 > CLASS_LINES
    ]


def complex_functions(module: str, path: Path) -> list[Size]:
    """Return the functions whose cyclomatic complexity is higher than the goal. radon measures it."""
    return [
        Size(f"{module}.{block.name}", block.complexity)
        for block in cc_visit(path.read_text())
        if not hasattr(block, "methods") and block.complexity > COMPLEXITY
    ]


def refused(rule: str, *settings: str) -> list[str]:
    """Return ruff's findings for one rule, each with place and text."""
    options = [option for setting in settings for option in ("--config", setting)]
    run = [sys.executable, "-m", "ruff", "check", "--isolated", "--output-format=json", "--select", rule, *options]
    refusals = json.loads(
        subprocess.run([*run, *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    )
    return [f"{Path(one['filename']).relative_to(ROOT)}:{one['location']['row']} {one['message']}" for one in refusals]


def protocols(paths: Mapping[str, Path]) -> int:
    """Return the number of protocols of the state."""
    return sum(
        isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
        for module, path in paths.items()
        if room(module) == "provisioner.state"
        for node in ast.walk(ast.parse(path.read_text()))
    )


def budgets(text: str, section: str = "house") -> Mapping[str, int]:
    """Return the budgets of a section of ``setup.cfg``, by their names."""
    parser = ConfigParser()
    parser.read_string(text)
    return {name: parser.getint(section, name) for name in parser[section]}


@dataclass(frozen=True)
class Row:
    """A measure with its limit and its goal."""

    name: str
    measured: int
    limit: int | None = None
    """The largest value with which ``make lint`` passes."""
    goal: int | None = None


def rows(here: House, granted: Mapping[str, int]) -> Iterator[Row]:
    """Measure the house: first its sizes, then the code that one request enters."""
    lengths = [len(path.read_text().splitlines()) for path in here.core.values() if path.name != "__init__.py"]
    core_code, all_code = (sum(map(code_lines, paths.values())) for paths in (here.core, here.files))
    yield Row("files, without the laboratory", len(here.core))
    yield Row("lines of code", core_code, granted["code_lines"], granted["code_lines_goal"])
    yield Row("lines of code with the laboratory", all_code)
    yield Row(f"modules under {SMALL} lines", sum(lines < SMALL for lines in lengths), None, SMALL_GOAL)
    yield Row(f"modules over {LARGE} lines", sum(lines > LARGE for lines in lengths), None, LARGE_GOAL)
    for kind in (Slot, Memory, Limits):
        yield Row(f"fields of {kind.__name__}", len(kind.__annotations__), None, FIELDS_GOAL)
    yield Row("protocols of the state", protocols(here.core), None, PROTOCOLS_GOAL)
    yield Row("rooms", len(here.rooms), ROOMS)
    yield Row("floors", len(here.floors()), FLOORS)
    yield Row("arrows between rooms", len(here.arrows))
    yield Row("rooms in circles", len(here.circles()), 0)
    yield Row("circles of modules inside rooms", len(here.circles_inside()), None, 0)
    with tempfile.TemporaryDirectory() as directory:
        for name, functions in ways(Path(directory)).items():
            goals = ENTERED_GOALS.get(name, (None, None))
            for what, number, goal in zip(("modules", "functions"), count(functions), goals, strict=True):
                yield Row(f"{name}: {what} entered", number, None, goal)


def main() -> int:
    """Print the table and the parts that are too big. Return 1 if a limit is exceeded."""
    here = house()
    big = big_classes(here.files)
    complex_ = [size for module, path in here.files.items() for size in complex_functions(module, path)]
    wide = refused("PLR0913", f"lint.pylint.max-args = {PARAMETERS}")
    granted = (ROOT / "setup.cfg").read_text()
    allowed = budgets(granted, "words")
    measures = [
        *rows(here, budgets(granted)),
        Row(f"classes over {CLASS_LINES} lines", len(big), 0),
        Row(f"functions more complex than {COMPLEXITY}", len(complex_), 0),
        Row(f"functions with more than {PARAMETERS} parameters", len(wide), 0),
        *(
            Row(kind, number, allowed[kind.replace(" ", "_")])
            for kind, number in words.numbers(words.findings()).items()
        ),
    ]
    table = Table("", "measured", "limit", "goal", title="The house")
    for row in measures:
        missed = row.goal is not None and row.measured > row.goal
        table.add_row(
            row.name,
            f"{row.measured:,}",
            "" if row.limit is None else f"{row.limit:,}",
            "" if row.goal is None else f"{row.goal:,}{' missed' if missed else ''}",
        )
    console = Console(width=120, highlight=False)
    console.print(table)
    for number, floor in reversed(list(enumerate(here.floors()))):
        console.print(f"floor {number}: {', '.join(name.removeprefix('provisioner.') for name in floor)}")
    for circle in [*here.circles_inside(), *([name] for name in here.circles())]:
        console.print(f"in a circle: {', '.join(circle)}")
    for size in big:
        console.print(f"{size.name}: {size.size} lines")
    for size in complex_:
        console.print(f"{size.name}: complexity {size.size}")
    for line in wide:
        console.print(line, markup=False)
    exceeded = [row for row in measures if row.limit is not None and row.measured > row.limit]
    for row in exceeded:
        console.print(f"Too many {row.name}: {row.measured:,}, and the limit is {row.limit:,}.")
    return int(bool(exceeded))


if __name__ == "__main__":
    sys.exit(main())
