"""``slurm.json`` beside HostFactory's files: it names a template for each node that Slurm may request by its
ResumeProgram.

The file is JSON because the scripts import no YAML.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import product
from math import prod
from typing import NamedTuple

from provisioner.files.config_error import Problem
from provisioner.hostfactory.provider_config import TemplatesError, format_expected, read_json

FILE = "slurm.json"
FORM = '{"nodes": {HOSTLIST: TEMPLATE}, "partitions": {PARTITION: TEMPLATE}}'

MOST_NODES = 100_000
"""Maximum number of nodes in a hostlist: more than any cluster has, and few enough for the memory of a script."""

TOKEN = re.compile(r"\[([0-9,\- ]*)\]|([^\[\],]+)")
"""Pattern of a part of a node's name in a hostlist: ranges in brackets, or text."""

RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")


class SlurmFile(NamedTuple):
    """The contents of ``slurm.json``."""

    nodes: Mapping[str, str]
    """Template of each node."""
    partitions: Mapping[str, str]
    """The templates of nodes that ``nodes`` does not name, by partition."""

    def template(self, node: str, partitions: Iterable[str]) -> str:
        """Return the node's own template, or else the template of the first of its partitions that the file names.
        Return an empty text if the file names neither the node nor one of the partitions."""
        return self.nodes.get(node) or next(filter(None, map(self.partitions.get, partitions)), None) or ""


def expand(hostlist: str) -> list[str]:
    """Return the names of the nodes in a hostlist, for example ``a[1-2]b[3-4],c07``. Each name is returned only once.

    A number has at least as many digits as the first number of its range: ``[08-10]`` means 08, 09 and 10. Raises
    ValueError for any other form, and for more than ``MOST_NODES`` nodes.
    """
    names: dict[str, None] = {}
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", hostlist.strip()):
        tokens = [*TOKEN.finditer(word)]
        if "".join(token[0] for token in tokens) != word:
            raise ValueError(f"{hostlist!r}: {word!r} is no name of nodes")
        parts = [[token[2]] if token[2] else _numbers(token[1], hostlist) for token in tokens]
        if len(names) + prod(map(len, parts)) > MOST_NODES:
            raise ValueError(f"{hostlist!r}: has more than {MOST_NODES} nodes")
        names |= dict.fromkeys(map("".join, product(*parts)))
    return list(names)


def _numbers(ranges: str, hostlist: str) -> list[str]:
    numbers: list[str] = []
    for written in ranges.replace(" ", "").split(","):
        found = RANGE.fullmatch(written)
        first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST_NODES - len(numbers):
            raise ValueError(f"{hostlist!r}: {written!r} is no range of numbers, or there are too many")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def load(directory: str, templates: Collection[str]) -> tuple[SlurmFile | None, list[Problem]]:
    """Read ``slurm.json`` in the configuration directory. Return the valid part of the file, and the file's mistakes.

    If there is no file, the valid part is None, because Slurm does not use this provider.

    ``templates``: ids of the valid templates. Raises TemplatesError if the file is unreadable or is not a JSON object
    of the right form.
    """
    path = os.path.join(directory, FILE)
    if not os.path.lexists(path):
        return None, []
    document, settings, problems = read_json(path), SlurmFile({}, {}), list[Problem]()
    if not isinstance(document, dict) or not all(
        key in SlurmFile._fields and isinstance(written, dict) for key, written in document.items()
    ):
        raise TemplatesError(path, format_expected(FORM, document))
    for key, known in settings._asdict().items():
        for written, template in document.get(key, {}).items():
            try:
                names = expand(written) if key == "nodes" else [written]
                if template not in templates:
                    raise ValueError(format_expected(f"one of {', '.join(templates)}", template))
                if twice := known.keys() & names:
                    raise ValueError(f"{min(twice)} has a template already")
                known |= dict.fromkeys(names, template)
            except ValueError as error:
                problems.append(Problem(path, f"{key}.{written}", str(error)))
    return settings, problems
