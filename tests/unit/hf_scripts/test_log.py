"""Tests of the scripts' log: a line per call, in the configured file and level, without ever failing a call."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hf_scripts import log
from provisioner.hostfactory.provider_config import Directories

HOST = "master1"


def directories(directory: Path, **config: object) -> Directories:
    """Return directories whose conf and log directory are the same; ``config`` becomes the provider config."""
    if config:
        (directory / "instprov_config.json").write_text(json.dumps(config))
    return Directories(
        {
            "HF_PROVIDER_NAME": "inst",
            "HF_PROVIDER_CONFDIR": str(directory),
            "HF_PROVIDER_LOGDIR": str(directory),
            "EGOSC_INSTANCE_HOST": HOST,
        }
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def logged(directory: Path) -> Path:
    return directory / f"inst-provider.{HOST}.log"


def test_a_line_holds_time_level_message_and_facts(tmp_path: Path) -> None:
    log.append(directories(tmp_path), "INFO", "Answered a call", {"command": "x"})
    [line] = lines(logged(tmp_path))
    assert line.items() >= {"severity": "INFO", "message": "Answered a call", "command": "x"}.items()
    assert line["time"].endswith("Z")


@pytest.mark.parametrize(
    ("configured", "levels"),
    [
        ("DEBUG", ["INFO", "WARNING", "ERROR"]),
        ("INFO", ["INFO", "WARNING", "ERROR"]),
        ("warning", ["WARNING", "ERROR"]),
        ("LOG_ERROR", ["ERROR"]),
        ("CRITICAL", []),
        ("LOUD", ["INFO", "WARNING", "ERROR"]),
    ],
)
def test_the_configured_level_is_kept(tmp_path: Path, configured: str, levels: list[str]) -> None:
    here = directories(tmp_path, LOG_LEVEL=configured)
    for level in ("INFO", "WARNING", "ERROR"):
        log.append(here, level, "m", {})
    written = lines(logged(tmp_path)) if logged(tmp_path).exists() else []
    assert [line["severity"] for line in written] == levels


@pytest.mark.parametrize("name", ["a\0b.log", "\ud800.log"])
def test_a_name_that_no_file_can_have_is_left_out(tmp_path: Path, name: str) -> None:
    log.append(directories(tmp_path, LOGFILE=name), "INFO", "m", {})
    assert len(lines(logged(tmp_path))) == 1


@pytest.mark.parametrize("name", ["mine.log", "/absolute/mine.log"])
def test_the_configured_file_is_used(tmp_path: Path, name: str) -> None:
    if name.startswith("/"):
        name = str(tmp_path / "mine.log")
    log.append(directories(tmp_path, LOGFILE=name), "INFO", "m", {})
    assert len(lines(tmp_path / "mine.log")) == 1


def test_a_full_log_is_rotated_and_only_so_many_are_kept(tmp_path: Path) -> None:
    here = directories(tmp_path, LOG_MAX_FILE_SIZE=0.0001, LOG_MAX_ROTATE=2)
    for number in range(5):
        log.append(here, "INFO", "m" * 200, {"number": number})
    path = logged(tmp_path)
    assert [lines(Path(f"{path}.{age}"))[0]["number"] for age in (1, 2)] == [4, 3]
    assert sorted(entry.name for entry in tmp_path.glob("*.log*")) == [f"{path.name}.1", f"{path.name}.2"]


@pytest.mark.parametrize("config", [{"LOG_MAX_ROTATE": 0, "LOG_MAX_FILE_SIZE": 0.0001}, {"LOG_MAX_FILE_SIZE": 0}])
def test_a_log_that_may_not_rotate_grows(tmp_path: Path, config: dict[str, float]) -> None:
    here = directories(tmp_path, **config)
    for _ in range(3):
        log.append(here, "INFO", "m" * 200, {})
    assert len(lines(logged(tmp_path))) == 3


def _append_many(directory: Path, writer: int) -> None:
    for number in range(100):
        log.append(directories(directory), "INFO", "m", {"id": [writer, number]})


def test_writers_at_the_same_time_lose_no_line_while_it_rotates(tmp_path: Path) -> None:
    directories(tmp_path, LOG_MAX_FILE_SIZE=0.004, LOG_MAX_ROTATE=50)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(_append_many, tmp_path), range(4)))
    files = list(tmp_path.glob("*.log*"))
    assert len(files) > 1, "the log rotated"
    written = {tuple(line["id"]) for file in files for line in lines(file)}
    assert written == {(writer, number) for writer in range(4) for number in range(100)}


def test_of_two_calls_that_found_the_log_full_one_rotates_it(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("old")
    with path.open("ab") as first, path.open("ab") as second:
        log.rotate(str(path), first.fileno(), keep=5)
        path.write_text("new")
        with pytest.raises(BlockingIOError):
            log.rotate(str(path), second.fileno(), keep=5)
        first.close()
        log.rotate(str(path), second.fileno(), keep=5)
    assert (path.read_text(), Path(f"{path}.1").read_text()) == ("new", "old")
    assert not Path(f"{path}.2").exists()


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    here = directories(tmp_path, LOGFILE="/proc/nothing/here.log")
    log.append(here, "ERROR", "m", {})
    log.append(Directories({"HF_PROVIDER_NAME": "inst"}), "ERROR", "m", {})
    log.append(Directories({}), "ERROR", "m", {})
    assert list(tmp_path.glob("*.log*")) == []


def test_a_broken_config_leaves_the_default_log(tmp_path: Path) -> None:
    here = directories(tmp_path)
    (tmp_path / "instprov_config.json").write_text("{")
    log.append(here, "INFO", "m", {})
    assert len(lines(logged(tmp_path))) == 1


def test_a_site_that_keeps_every_log_waits_for_no_rotation(tmp_path: Path) -> None:
    here = directories(tmp_path, LOG_MAX_FILE_SIZE=0.0001, LOG_MAX_ROTATE=999_999_999_999)
    for _ in range(3):
        log.append(here, "INFO", "m" * 200, {})
    assert len(list(tmp_path.glob("*.log*"))) == 3
