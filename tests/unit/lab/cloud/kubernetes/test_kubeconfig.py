"""The kubeconfig that the embedded cloud writes for its callers."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.lab.cloud.kubernetes import kubeconfig


def test_a_kubeconfig_of_the_user_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "config"
    document = kubeconfig.kubeconfig("http://127.0.0.1:1", "default", {})
    kubeconfig.write(path, document)
    kubeconfig.write(path, document)
    path.write_text("apiVersion: v1\nkind: Config\n")
    with pytest.raises(FileExistsError, match="left alone"):
        kubeconfig.write(path, document)
    assert path.read_text() == "apiVersion: v1\nkind: Config\n"
