"""Whatever bytes a file of the configuration holds: settings, or a ConfigError that names the file; nothing else."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.commands import cli
from provisioner.files.yaml_text import DEEPEST, LARGEST, MOST_VALUES, parse
from provisioner.settings import loader
from provisioner.settings.advice import advice
from provisioner.simulator.cloud import Conditions
from tests.support.hostfactory.sites import SPEC, Site, small_site

FUZZ = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 3000))

BYTES = {
    "nested beyond Python's stack, in brackets": b"[" * 100_000,
    "nested beyond Python's stack, in braces": b"{a: " * 5_000 + b"}" * 5_000,
    "nested beyond Python's stack, in dashes": b"- " * 5_000,
    "nested beyond Python's stack, in keys": b"? " * 5_000,
    "nested a little deeper than it may be": b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
    "aliases that stand for a billion values": BOMB.encode(),
    "merges that stand for a billion keys": MERGES.encode(),
    "aliases nested three thousand deep": CHAIN.encode(),
    "an alias that holds itself": b"a: &a [*a]",
    "a merge of itself": b"&a {<<: *a}",
    "a NUL": b"id: a\0b",
    "a NUL in a name of a file": b'pools: {p: {kind: gke, pod_spec: "a\\0b", kubeconfig: "c\\0d"}}',
    "the home of nobody": b"pools: {p: {kind: gke, pod_spec: ~no-such-user/x, kubeconfig: ~no-such-user/y}}",
    "a whole number of ten thousand digits": b"orphan_cap_per_hour: " + b"1" * 10_000,
    "a whole number of ten thousand hexadecimal digits": b"orphan_cap_per_hour: 0x" + b"f" * 10_000,
    "a key that is such a number": b"0x" + b"f" * 10_000 + b": 1",
    "a number without digits": b"id: 0b_",
    "no number, by its tag": b"id: !!int x",
    "nothing at all, by its tag a number": b"id: !!int ''",
    "no date, by its form": b"id: 2024-99-99",
    "no date, by its tag": b"id: !!timestamp x",
    "no truth, by its tag": b"id: !!bool x",
    "a date": b"id: 2024-01-01",
    "a tab": b"loop:\n\tinterval_seconds: 5",
    "no UTF-8": b"\xff\xfe\x00",
    "half a character": b'id: "\\ud800"',
    "a character beyond the last": b'id: "\\UFFFFFFFF"',
    "a version beyond numbers": b"%YAML 1." + b"1" * 10_000 + b"\n---\nid: a",
    "a key that is a list": b"? [a, b]\n: 1",
    "a key that is a mapping": b"? {a: b}\n: 1",
    "a kind that is a list": b"pools: {p: {kind: [gke]}}",
    "a kind that is a mapping": b"pools: {p: {kind: {a: b}}}",
    "a tag of Python's": b"!!python/object/apply:os.system [true]",
    "two documents": b"id: a\n---\nid: b",
    "a key given twice": b"id: a\nid: b",
    "an alias of nothing": b"id: *a",
    "more than it may hold": b"#" * (LARGEST + 1),
    "more values than it may hold": b"[" + b"1," * (MOST_VALUES + 1) + b"]",
}

QUICK = (
    "nested a little deeper than it may be",
    "aliases that stand for a billion values",
    "an alias that holds itself",
    "a NUL",
    "a number without digits",
    "a date",
    "a tab",
    "no UTF-8",
    "two documents",
    "more than it may hold",
)
"""Enough of them in `make test` for whatever reads such texts by the same way."""

OFTEN = [
    pytest.param(content, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name, content in BYTES.items()
]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """HF's files are right; what provisioner.yaml holds, a test says."""
    made = small_site(tmp_path)
    made.write()
    return made


def complaint(site: Site) -> str:
    """What is said of the configuration; empty where it can be used."""
    try:
        settings = loader.load(site.path, {})
        advice(settings, loader.templates.load(site.directory, {}).templates)
    except loader.ConfigError as error:
        problems = error.problems
    else:
        return ""
    assert problems
    assert all(problem.file for problem in problems)
    return str(loader.ConfigError(problems))


@pytest.mark.parametrize("content", BYTES.values(), ids=BYTES.keys())
def test_each_text_that_is_no_configuration_is_refused_with_its_file(site: Site, content: bytes) -> None:
    site.path.write_bytes(content)
    words = complaint(site)
    assert words.startswith(f"{site.path}: ")
    assert len(words) < 1000


@pytest.mark.parametrize("content", OFTEN)
def test_each_text_that_is_no_pod_is_refused_with_its_file(site: Site, content: bytes) -> None:
    (site.directory / "spec.yaml").write_bytes(content)
    assert "pools.gke-main.pod_spec: 'spec.yaml'" in complaint(site)


@pytest.mark.parametrize("file", ["tprov_config.json", "tprov_templates.json"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"[" * 100_000, id="nested beyond Python's stack"),
        pytest.param(b'{"a":' * 500 + b"1" + b"}" * 500, id="nested deeper than it may be"),
        pytest.param(b'{"GCP_PROJECT_ID": ' + b"1" * 10_000 + b"}", id="a number of ten thousand digits"),
        pytest.param(b"\xff\xfe\x00", id="no text"),
        pytest.param(b'{"a": 1}\0', id="a NUL"),
        pytest.param(b" " * 20_000_000, id="more than it may hold"),
    ],
)
def test_each_text_that_is_none_of_hf_s_files_is_refused_with_its_name(site: Site, file: str, content: bytes) -> None:
    (site.directory / file).write_bytes(content)
    assert complaint(site).startswith(f"{site.directory / file}: 1 problem\n")


@pytest.mark.parametrize("file", ["provisioner.yaml", "spec.yaml", "tprov_config.json", "tprov_templates.json"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a FIFO", "a directory"])
def test_what_is_no_regular_file_is_refused_at_once(site: Site, file: str, make: Callable[[Path], None]) -> None:
    (site.directory / file).unlink()
    make(site.directory / file)
    assert file in (words := complaint(site))
    assert "is no regular file" in words


def test_a_pod_spec_that_goes_while_it_is_checked_is_named(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = loader.load

    def lost(*arguments: Any) -> loader.Settings:
        loaded = load(*arguments)
        (site.directory / "spec.yaml").unlink()
        return loaded

    monkeypatch.setattr(loader, "load", lost)
    assert cli.run(["check", str(site.path)]) == 2
    assert "spec.yaml" in capsys.readouterr().err


def test_templates_that_go_while_they_are_checked_are_named(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = loader.load

    def lost(*arguments: Any) -> loader.Settings:
        loaded = load(*arguments)
        (site.directory / "tprov_templates.json").unlink()
        return loaded

    monkeypatch.setattr(loader, "load", lost)
    monkeypatch.setenv("HF_PROVIDER_NAME", "t")
    assert cli.run(["check", str(site.path)]) == 2
    assert "tprov_templates.json" in capsys.readouterr().err


@pytest.mark.parametrize("content", OFTEN)
def test_check_says_what_is_wrong_and_ends_with_2(
    site: Site, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    site.path.write_bytes(content)
    assert cli.run(["check", str(site.path)]) == 2
    assert str(site.path) in capsys.readouterr().err


@pytest.mark.parametrize("content", OFTEN)
def test_the_simulator_s_file_of_faults_is_read_as_safely(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "faults.yaml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=str(file)):
        Conditions.read(file)


# --- at random --------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *(
            "[",
            "]",
            "{",
            "}",
            ": ",
            "- ",
            "? ",
            ", ",
            "\n",
            "  ",
            "\t",
            "&a ",
            "*a",
            "<<: ",
            "!!int ",
            "!!set ",
            "| ",
            "'",
        ),
        *(
            "!!omap ",
            "!!binary ",
            "!!timestamp ",
            "!!float ",
            "!!merge ",
            '"',
            "#",
            "%YAML 1.1\n",
            "---\n",
            "...\n",
            "~",
        ),
        *("id", "pools", "kind", "gke", "mig", "pod_spec", "zone", "loop", "\ufeff", "\\ud800", "\0", "\x85", "é", "="),
        *(
            "0x",
            "0b",
            "1",
            "9" * 30,
            "1:30",
            ".nan",
            ".inf",
            "1e999",
            "-",
            "_",
            "2024-13-01",
            "12:00:00",
            "null",
            "yes",
        ),
    ]
)
TEXTS = st.lists(PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode("utf-8"))


@FUZZ
@given(content=TEXTS | st.binary(max_size=80))
def test_random_bytes_are_settings_or_a_config_error(site: Site, content: bytes) -> None:
    for file in ("provisioner.yaml", "spec.yaml", "tprov_config.json", "tprov_templates.json"):
        site.write()
        (site.directory / "spec.yaml").write_text(SPEC)
        (site.directory / file).write_bytes(content)
        complaint(site)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.dates(),
        st.datetimes(),
        st.binary(max_size=4),
        st.sampled_from(["gke", "mig", "~", "~x", "..", "/", "http://", "us-central1-a", "x" * 300, 2**63, -(2**64)]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
FULL = {
    "loop": {"interval_seconds": 5, "floor_seconds": 1},
    "backoff": {"first_seconds": 1, "last_seconds": 2},
    "compute": {"calls_per_minute": 60},
    "events": {"project": "demo-project", "subscription": "s"},
    "listen": "127.0.0.1:0",
    "adopt_prefixes": ["sym-"],
    "name_prefix": "hf",
    "retention_hours": 1,
}


def places(document: object, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value of a document."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [where, *(place for key, value in inner for place in places(value, (*where, key)))]


def changed(document: Any, value: Any, chance: random.Random) -> Any:
    """The document with another value in one place."""
    *way, last = chance.choice([place for place in places(document) if place])
    made = outer = copy.deepcopy(document)
    for key in way:
        outer = outer[key]
    outer[last] = value
    return made


@FUZZ
@given(value=VALUES, chance=st.randoms(use_true_random=False))
def test_a_setting_of_any_value_is_taken_or_named(site: Site, value: Any, chance: random.Random) -> None:
    full = {**site.settings, **FULL}
    site.path.write_text(yaml.safe_dump(changed(full, value, chance), sort_keys=False), encoding="utf-8")
    complaint(site)


@FUZZ
@given(value=VALUES, chance=st.randoms(use_true_random=False))
def test_a_field_of_a_pod_of_any_value_is_taken_or_named(site: Site, value: Any, chance: random.Random) -> None:
    container = {
        "name": "main",
        "image": "x",
        "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"cpu": 1}},
    }
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container], "hostname": "x"}}
    text = yaml.safe_dump(changed(pod, value, chance), sort_keys=False)
    (site.directory / "spec.yaml").write_text(text, encoding="utf-8")
    complaint(site)


@FUZZ
@given(value=VALUES.filter(lambda value: "date" not in repr(value) and "b'" not in repr(value)), chance=st.randoms())
def test_a_field_of_hf_s_files_of_any_value_is_taken_or_named(site: Site, value: Any, chance: random.Random) -> None:
    provider = {"GCP_PROJECT_ID": "p", "GKE_KUBECONFIG": "k", "LOG_MAX_FILE_SIZE": 1, "HF_TEMPLATES_FILENAME": ""}
    templates = {"templates": [{**site.templates[0], "podSpecYaml": "spec.yaml", "gcp_zone": "us-central1-a"}]}
    for name, document in (("tprov_config.json", provider), ("tprov_templates.json", templates)):
        site.write()
        (site.directory / name).write_text(json.dumps(changed(document, value, chance), default=str))
        complaint(site)


@FUZZ
@given(content=TEXTS)
def test_random_yaml_is_a_document_or_a_yaml_error(content: bytes) -> None:
    with suppress(yaml.YAMLError):
        parse(content.decode())
