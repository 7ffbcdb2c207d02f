"""Tests of the directories that a script uses, from the environment of HostFactory or of LSF."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioner.hostfactory.provider_config import Directories, DirectoryError

PLACE_CASES = [
    pytest.param(
        {"HF_PROVIDER_CONFDIR": "/c", "HF_PROVIDER_WORKDIR": "/w", "HF_PROVIDER_LOGDIR": "/l"},
        ("/c", "/w", "/l"),
        id="HF gives the instance's own directories",
    ),
    pytest.param(
        {"HF_CONFDIR": "/c", "HF_WORKDIR": "/w", "HF_LOGDIR": "/l"},
        ("/c/providers/inst", "/w/providers/inst", "/l"),
        id="HF gives its common directories",
    ),
    pytest.param(
        {"HF_TOP": "/hf"},
        ("/hf/conf/providers/inst", "/hf/work/providers/inst", "/hf/log"),
        id="HF gives only its top",
    ),
    pytest.param(
        {"PRO_CONF_DIR": "/c", "PRO_DATA_DIR": "/w", "PRO_LSF_LOGDIR": "/l"},
        ("/c", "/w/inst", "/l"),
        id="LSF, whose data directory is shared",
    ),
    pytest.param(
        {"HF_PROVIDER_CONFDIR": "/own", "HF_CONFDIR": "/common", "HF_TOP": "/hf", "PRO_CONF_DIR": "/lsf"},
        ("/own", "/hf/work/providers/inst", "/hf/log"),
        id="each place falls back by itself",
    ),
    pytest.param(
        {"HF_PROVIDER_CONFDIR": "", "HF_CONFDIR": "/c", "HF_WORKDIR": "/w"},
        ("/c/providers/inst", "/w/providers/inst", ""),
        id="an empty variable is not set, and a log need not be",
    ),
]


@pytest.mark.parametrize(("environment", "expected"), PLACE_CASES)
def test_the_directories_come_from_the_nearest_variable(
    environment: dict[str, str], expected: tuple[str, str, str]
) -> None:
    directories = Directories({"HF_PROVIDER_NAME": "inst", **environment})
    assert (directories.conf, directories.state, directories.logs) == expected


def test_lsf_names_the_instance_and_keeps_its_files_one_level_deeper(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    directories = Directories({"HF_PROVIDER_NAME": "", "PROVIDER_NAME": "lsf", "PRO_CONF_DIR": str(tmp_path)})
    assert (directories.name, directories.conf) == ("lsf", str(tmp_path / "conf"))
    assert Directories({"HF_PROVIDER_CONFDIR": str(tmp_path)}).conf == str(tmp_path), "HF names the directory itself"


@pytest.mark.parametrize(
    ("place", "environment", "variable"),
    [
        ("name", {}, "HF_PROVIDER_NAME: is not set"),
        ("name", {"HF_PROVIDER_NAME": "../x"}, "HF_PROVIDER_NAME: expected 1 to 64"),
        ("conf", {"HF_PROVIDER_NAME": "inst"}, "HF_PROVIDER_CONFDIR: is not set"),
        ("conf", {"HF_CONFDIR": "/c"}, "HF_PROVIDER_NAME: is not set"),
        ("state", {"HF_PROVIDER_NAME": "inst", "HF_PROVIDER_CONFDIR": "/c"}, "HF_PROVIDER_WORKDIR: is not set"),
        ("state", {"HF_WORKDIR": "/w", "HF_PROVIDER_NAME": "a/b"}, "HF_PROVIDER_NAME: expected"),
    ],
)
def test_what_is_not_set_is_named(place: str, environment: dict[str, str], variable: str) -> None:
    with pytest.raises(DirectoryError, match=f"^{variable}"):
        getattr(Directories(environment), place)


def test_the_host_is_the_one_ego_names_else_this_one() -> None:
    assert Directories({"EGOSC_INSTANCE_HOST": "master1"}).host == "master1"
    assert Directories({}).host == os.uname().nodename
