"""Tests of slurm_nodes.json: changes of several writers, and a file that is no record of nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.state.directory import SLURM_NODES_FILE
from provisioner.state.errors import StateUnreadable
from provisioner.state.slurm_nodes import NodeRecord, SlurmNodes

ONE, TWO, THREE = NodeRecord("aaaaaaaaaa"), NodeRecord("bbbbbbbbbb", "hf-bbbbbbbbbb-000000"), NodeRecord("cccccccccc")


@pytest.fixture
def nodes(tmp_path: Path) -> SlurmNodes:
    return SlurmNodes(str(tmp_path / SLURM_NODES_FILE))


def test_what_a_block_changes_is_read_again(nodes: SlurmNodes) -> None:
    assert nodes.read() == {}
    with nodes.changing() as records:
        records |= {"n1": ONE, "n2": TWO}
    assert nodes.read() == {"n1": ONE, "n2": TWO}


def test_a_block_that_changes_nothing_or_fails_writes_nothing(nodes: SlurmNodes) -> None:
    with nodes.changing():
        pass
    with pytest.raises(ZeroDivisionError), nodes.changing() as records:
        records["n1"] = NodeRecord(str(1 // 0))
    assert not Path(nodes.path).exists()


def test_a_change_keeps_what_another_process_has_written_since(nodes: SlurmNodes) -> None:
    before = {"n1": ONE, "n2": ONE, "n3": ONE}
    with nodes.changing() as records:
        records |= {"n1": ONE, "n2": THREE, "n4": TWO}
    after = nodes.change(before, {"n1": TWO, "n2": TWO})
    assert nodes.read() == after == {"n1": TWO, "n2": THREE, "n4": TWO}
    nodes.change({"n1": TWO}, {})
    assert nodes.read() == {"n2": THREE, "n4": TWO}


@pytest.mark.parametrize("content", ["[]", '{"n1": {"node": "n1"}}', '{"n1": 5}', "{"])
def test_another_document_is_refused_with_the_next_step(nodes: SlurmNodes, content: str) -> None:
    Path(nodes.path).write_text(content)
    with pytest.raises(StateUnreadable, match="Remove the file"):
        nodes.read()
