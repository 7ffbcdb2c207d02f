"""The check of EGO_DYNAMIC_HOST_TIMEOUT in ego.conf: the time after which EGO drops a host that has gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_scripts.host_checks import check_expiry


def conf(top: Path, text: str) -> Path:
    """Return the path of ego.conf of an EGO installed in the directory."""
    path = top / "kernel" / "conf" / "ego.conf"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def printed_results(**environment: object) -> list[str]:
    return [str(result) for result in check_expiry({name: str(value) for name, value in environment.items()})]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("EGO_DYNAMIC_HOST_TIMEOUT=10m\n", "10m"),
        ("  EGO_DYNAMIC_HOST_TIMEOUT = 1 # an hour\n", "1"),
        ("EGO_DYNAMIC_HOST_TIMEOUT=5M\r\nEGO_DYNAMIC_HOST_TIMEOUT=15M\r\n", "15M"),
        ("#EGO_DYNAMIC_HOST_TIMEOUT=10m\n", ""),
        ("EGO_DYNAMIC_HOST_TIMEOUT=\nEGO_MASTER_LIST=m1\n", ""),
        ("EGO_DYNAMIC_HOST_WAIT_TIME=60\n", ""),
        ("", ""),
    ],
)
def test_a_grid_whose_ego_forgets_no_host_is_to_be_fixed(text: str, value: str, tmp_path: Path) -> None:
    path = conf(tmp_path, text)
    good = f"fine: {path}: EGO drops a host that has gone after {value} (EGO_DYNAMIC_HOST_TIMEOUT)"
    bad = (
        f"fix: {path}: EGO_DYNAMIC_HOST_TIMEOUT is missing, so EGO never drops a machine that has gone: "
        "add EGO_DYNAMIC_HOST_TIMEOUT=10m, then restart EGO on the management hosts"
    )
    assert printed_results(EGO_TOP=tmp_path) == [good if value else bad]


def test_the_file_is_found_by_the_first_of_three_variables(tmp_path: Path) -> None:
    for name in "abc":
        conf(tmp_path / name, f"EGO_DYNAMIC_HOST_TIMEOUT={name}\n")
    variables = {
        "EGO_CONFDIR": tmp_path / "a" / "kernel" / "conf",
        "EGO_TOP": tmp_path / "b",
        "HF_TOP": tmp_path / "c" / "hostfactory",
    }
    (tmp_path / "c" / "hostfactory").mkdir()
    for name in "abc":
        (line,) = printed_results(**variables)
        assert f"after {name} (" in line
        del variables[next(iter(variables))]


def test_without_a_file_to_read_there_is_no_result(tmp_path: Path) -> None:
    assert printed_results() == []
    assert printed_results(EGO_TOP=tmp_path) == []
    conf(tmp_path, "").unlink()
    (tmp_path / "kernel" / "conf" / "ego.conf").mkdir()
    assert printed_results(EGO_TOP=tmp_path) == []
