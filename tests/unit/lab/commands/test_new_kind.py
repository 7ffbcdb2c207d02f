"""``provisioner new-kind``: the files that it writes, and the names that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.commands import cli


def test_it_writes_five_files_and_a_test_that_name_the_kind_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["new-kind", "pbs"]) == 0
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    package = {f"pbs_provisioner/{name}.py" for name in ("settings", "kind", "backend")}
    assert written == {f"pbs-provisioner/{name}" for name in ("pyproject.toml", "README.md", *package)} | {
        "pbs-provisioner/tests/test_contract.py"
    }
    assert sorted(capsys.readouterr().out.split()) == sorted(written)
    for path in written:
        text = (tmp_path / path).read_text()
        assert "skeleton" not in text.lower(), path
        assert "provisioner.lab" not in text, path
    assert 'pbs = "pbs_provisioner.kind:KIND"' in (tmp_path / "pbs-provisioner" / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Pbs", "expected 2 to 20 small letters and digits, a letter first"),
        ("my-kind", "expected 2 to 20 small letters and digits, a letter first"),
        ("../up", "expected 2 to 20 small letters and digits, a letter first"),
        ("", "expected 2 to 20 small letters and digits, a letter first"),
        ("gke", "there is a kind of this name; the kinds are gke, mig"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["new-kind", name]) == 2
    assert words in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_directory_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("kept")
    for there in (tmp_path, tmp_path / "mine"):
        assert cli.run(["new-kind", "pbs", "--out", str(there)]) == 2
        assert f"{there}: exists already; name another directory with --out" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == [tmp_path / "mine"]
