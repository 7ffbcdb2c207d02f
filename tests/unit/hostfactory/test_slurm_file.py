"""Tests of slurm.json: hostlists, the template of a node, and every mistake at once."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.hostfactory import slurm_file
from provisioner.hostfactory.provider_config import TemplatesError
from provisioner.hostfactory.slurm_file import MOST_NODES, expand

TEMPLATES = ["Small", "Gpu"]


@pytest.mark.parametrize(
    ("hostlist", "nodes"),
    [
        ("n1", ["n1"]),
        ("node[1-3,07-10]", ["node1", "node2", "node3", "node07", "node08", "node09", "node10"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("a[1-2][3-4]", ["a13", "a14", "a23", "a24"]),
        ("x,y[2,5],z", ["x", "y2", "y5", "z"]),
        ("a[98-101]", ["a98", "a99", "a100", "a101"]),
        ("a[001-2]", ["a001", "a002"]),
        ("n1,n1,n[1-2]", ["n1", "n2"]),
        ("", []),
        (",a,,b,", ["a", "b"]),
    ],
)
def test_a_hostlist_is_expanded(hostlist: str, nodes: list[str]) -> None:
    assert expand(hostlist) == nodes


@pytest.mark.parametrize(
    "hostlist", ["n[3-1]", "n[1-2", "n1]", "n[a-b]", "n[]", "n[1-2,]", "n[1-3/2]", "n[[1]]", "n[1-2-3]", "n[1,,2]"]
)
def test_any_other_form_is_refused(hostlist: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        expand(hostlist)


BRACKETS = f"n[{','.join(['0-60000'] * 2000)}]"


@pytest.mark.parametrize("hostlist", ["n[1-999999999]", "n[1-1000]m[1-1000]", "a[1-60000],b[1-60000]", BRACKETS])
def test_a_hostlist_without_end_takes_no_memory(hostlist: str) -> None:
    with pytest.raises(ValueError, match=f"more than {MOST_NODES} nodes|is no range"):
        expand(hostlist)


def test_a_long_list_of_single_names_is_read_at_once() -> None:
    began = process_time()
    assert len(expand(",".join(f"node-{number:05x}" for number in range(20_000)))) == 20_000
    assert process_time() - began < 1.0, "it took 8 s while each comma was compared with the rest of the list"


WORDS = st.text("abn-._", min_size=1, max_size=4)


@given(WORDS, st.lists(st.tuples(st.integers(0, 120), st.integers(0, 15), st.integers(1, 4)), min_size=1, max_size=4))
def test_a_range_has_the_digits_of_its_first_number(name: str, ranges: list[tuple[int, int, int]]) -> None:
    written = [(f"{first:0{width}d}", first, first + more) for first, more, width in ranges]
    hostlist = f"{name}[{','.join(f'{text}-{last}' for text, _, last in written)}]"
    numbers = [str(n).zfill(len(text)) for text, first, last in written for n in range(first, last + 1)]
    assert expand(hostlist) == list(dict.fromkeys(f"{name}{number}" for number in numbers))


def load(directory: Path, document: object) -> tuple[slurm_file.SlurmFile, list[str]]:
    assert slurm_file.load(str(directory), TEMPLATES) == (None, [])
    (directory / slurm_file.FILE).write_text(json.dumps(document))
    settings, problems = slurm_file.load(str(directory), TEMPLATES)
    assert settings is not None
    return settings, [str(problem) for problem in problems]


def test_the_template_of_a_node_is_its_own_or_that_of_a_partition(tmp_path: Path) -> None:
    settings, problems = load(tmp_path, {"nodes": {"c[1-2]": "Small"}, "partitions": {"gpu": "Gpu"}})
    assert problems == []
    found = [settings.template("c2", ["gpu"]), settings.template("c3", ["night", "gpu"]), settings.template("c3", [])]
    assert found == ["Small", "Gpu", ""]


def test_every_mistake_is_reported_and_the_rest_is_used(tmp_path: Path) -> None:
    settings, problems = load(
        tmp_path,
        {"nodes": {"a[1-2]": "Small", "a2": "Gpu", "b[": "Small", "c": "Smal"}, "partitions": {"gpu": 3, "n": "Gpu"}},
    )
    assert settings == ({"a1": "Small", "a2": "Small"}, {"n": "Gpu"})
    assert problems == [
        "nodes.a2: a2 has a template already",
        "nodes.b[: 'b[': 'b[' is no name of nodes",
        'nodes.c: expected one of Small, Gpu, got "Smal"',
        "partitions.gpu: expected one of Small, Gpu, got 3",
    ]


@pytest.mark.parametrize("document", [[], {"nodes": ["c1"]}, {"node": {}}, None])
def test_a_file_of_another_form_is_unusable(tmp_path: Path, document: object) -> None:
    with pytest.raises(TemplatesError, match=r'expected {"nodes": {HOSTLIST: TEMPLATE}'):
        load(tmp_path, document)
