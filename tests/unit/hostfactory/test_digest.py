"""Tests of the digest of HostFactory's files: the changes that alter the digest, and the changes that do not."""

from __future__ import annotations

import json
from pathlib import Path

from provisioner.hostfactory import templates
from provisioner.hostfactory.provider_config import Digests
from provisioner.hostfactory.templates import digest_of_templates
from tests.support.hostfactory.sites import template

ENTRY = template("T", pools=["a"])


def loaded(directory: Path, text: str, config: str = "{}") -> Digests:
    directory.mkdir(exist_ok=True)
    (directory / "demoprov_templates.json").write_text(text)
    (directory / "demoprov_config.json").write_text(config)
    return templates.load(directory, {}).digests


def test_space_order_and_what_is_of_a_moment_change_nothing(tmp_path: Path) -> None:
    first = loaded(tmp_path, json.dumps({"templates": [ENTRY]}))
    entry = {**dict(reversed(ENTRY.items())), "availableNumber": 3, "requestedMachines": []}

    assert loaded(tmp_path, json.dumps([entry], indent=4)) == first
    assert digest_of_templates([{**ENTRY, "maxNumber": 6}]) != first.templates


def test_each_file_has_a_digest_of_its_own(tmp_path: Path) -> None:
    text = json.dumps([ENTRY])
    first, second = loaded(tmp_path, text), loaded(tmp_path, text, '{"LOG_LEVEL": "DEBUG"}')

    assert first.templates == second.templates
    assert first.config != second.config


def test_no_config_is_an_empty_one(tmp_path: Path) -> None:
    empty = loaded(tmp_path, json.dumps([ENTRY]))
    (tmp_path / "demoprov_config.json").unlink()

    assert templates.load(tmp_path, {}).digests == empty
