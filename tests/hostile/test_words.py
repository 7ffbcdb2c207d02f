"""Texts of clouds and HostFactory with control characters, which a terminal would obey. No such character reaches a
screen, a page, a log or HostFactory."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.compute import api
from provisioner.lab.cloud.kubernetes import form, store
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import ErrorClass, Failure
from provisioner.names import format_printable, format_printable_lines
from tests.conformance.stage import PROJECT, TIMINGS, ZONE, Instance
from tests.support.clouds.specs import advised
from tests.support.hostfactory.provider import ROOT, HostFactory
from tests.support.waiting import PATIENCE, until

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \x9b2J\x85\u202egnirts\u2066\u200b\ufeff\r\nERROR forged"
"""Escape sequences, C1 control characters, characters that reverse the direction of text, and the begin of a forged
line."""

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202e\u2066\ufeff]|\\\\u00(?:1b|9b)|\\\\u202e")
"""The control characters in HOSTILE, raw or as escapes of JSON. No screen may have them."""

SENTENCES = ("message", "reason", "statusMessage", "description")
"""Fields of the clouds' documents with texts for operators."""

GROUP, NAMESPACE = "words", "words"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """Yield an instance whose clouds refuse creates. Each sentence of these clouds ends with the text HOSTILE."""
    for module in (api, form, store):
        monkeypatch.setattr(module, "json", SimpleNamespace(dumps=_dumped, loads=json.loads))
    with Simulator(
        namespaces=[NAMESPACE],
        migs=[advised(project=PROJECT, zone=ZONE, name=GROUP)],
        conditions=Conditions.of(timings=TIMINGS),
    ) as cloud:
        attributes = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "1"], "nram": ["Numeric", "1024"]}
        with Instance(tmp_path, cloud, NAMESPACE) as made:
            listed = [
                {"templateId": name, "maxNumber": 9, "attributes": attributes, "pools": [name]}
                for name in ("pods", "vms")
            ]
            made.templates_file.write_text(json.dumps({"templates": listed}))
            pods = {"kind": "gke", "namespace": NAMESPACE, "pod_spec": "pod.yaml", "observe_seconds": 0.05}
            vms = {"kind": "mig", "project": PROJECT, "zone": ZONE, "group": GROUP, "observe_seconds": 0.2}
            loop = {"interval_seconds": 0.1, "floor_seconds": 0.02, "intent_poll_seconds": 0.02}
            settings = {"id": "demo", "loop": loop, "pools": {"pods": pods, "vms": vms | {"lag_seconds": 0.2}}}
            (made.conf / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
            (made.conf / "provisioner.yaml").write_text(yaml.safe_dump(settings))
            cloud.impose(
                [Fault("denied", ".*/(createInstances|pods)"), Fault("denied", "pods"), Fault("denied", "vms")]
            )
            yield made


def _dumped(document: Any, **layout: Any) -> str:
    """Return the document as JSON. Each of its sentences ends with the text HOSTILE."""
    return json.dumps(_hostile(document), **layout)


def _hostile(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: f"{value}{HOSTILE}" if key in SENTENCES and isinstance(value, str) else _hostile(value)
            for key, value in part.items()
        }
    return [_hostile(one) for one in part] if isinstance(part, list) else part


def typed(site: Instance, *words: str) -> str:
    """Run a command, and return its output and its error output."""
    clouds = {"KUBECONFIG": str(site.simulator.kubeconfig), "PROVISIONER_COMPUTE_ENDPOINT": site.simulator.compute}
    done = subprocess.run(
        [sys.executable, "-m", "provisioner", *words],
        env={**os.environ, **site.environment, **clouds, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    return (done.stdout + done.stderr).decode()


@pytest.mark.slow
def test_no_hostile_word_of_a_cloud_reaches_a_screen(site: Instance) -> None:
    site.start_loop()
    site.cycles()
    site.simulator.impose([Fault("denied")])
    ids = [
        site.call("requestMachines", {"template": {"templateId": name, "machineCount": 2}})["requestId"]
        for name in ("pods", "vms")
    ]
    hosts = {"machines": [{"name": f"host{HOSTILE}", "machineId": ""}]}
    site.call("getReturnRequests", hosts)
    ids.append(site.call("requestReturnMachines", hosts)["requestId"])
    until(lambda: "forged" in typed(site, "status"), 60, what="the refusal is shown")

    screens = {
        command: typed(site, *command.split())
        for command in (
            *(f"explain {name}" for name in (*ids, "pods", "vms")),
            "check --live", "diff", "plan", "doctor", "status", "status -o json", "run --once --dry-run",
        )
    }  # fmt: skip
    pages = {
        path: requests.get(f"{site.url}{path}", timeout=10 * PATIENCE).text
        for path in (
            "/",
            "/status.json",
            "/status",
            "/metrics",
            "/pool/pods",
            "/pool/vms",
            *(f"/request/{name}" for name in ids),
        )
    }
    answer = json.dumps(site.status(ids[0]), ensure_ascii=False)

    shown = {**screens, **pages, "getRequestStatus": answer}
    assert [name for name, text in shown.items() if CONTROL.search(text)] == []
    assert [name for name, text in shown.items() if re.search(r"(?m)^ERROR forged", text)] == []
    assert sum("forged" in text for text in shown.values()) >= 6, "the rest of the words is shown"


@given(st.text())
def test_printable_text_is_one_line_and_keeps_its_letters(text: str) -> None:
    shown = format_printable(text)
    assert CONTROL.search(shown) is None
    assert "\n" not in shown
    assert Failure(ErrorClass.OTHER, text).text == shown
    assert [letter for letter in shown if letter.isalnum()] == [letter for letter in text if letter.isalnum()]
    assert CONTROL.search(format_printable_lines(text)) is None
    assert format_printable_lines(text).count("\n") == text.count("\n")


def test_rich_steers_the_terminal_and_words_do_not(tmp_path: Path) -> None:
    """Rich's own control characters must reach the terminal. To check this, run ``status --watch`` on a terminal until
    the screen has been drawn."""
    hf = HostFactory(tmp_path)
    (hf.conf / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
    pools = {"gke-main": {"kind": "gke", "namespace": "words", "pod_spec": "pod.yaml"}}
    (hf.conf / "provisioner.yaml").write_text(yaml.safe_dump({"id": "demo", "pools": pools}))
    hf.state.intent.create(hf.instance)
    reader, screen = os.openpty()
    shown = b""
    watching = subprocess.Popen(
        [sys.executable, "-m", "provisioner", "status", "--watch"],
        env={**os.environ, **hf.environment, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        stdin=screen,
        stdout=screen,
        stderr=screen,
    )
    try:
        while b"Provisioner" not in shown:
            assert select.select([reader], [], [], 60 * PATIENCE)[0], shown
            shown += os.read(reader, 65536)
    finally:
        watching.kill()
        watching.wait()
        for descriptor in (reader, screen):
            os.close(descriptor)
    assert b"\x1b[?1049h" in shown, "another screen is asked for, and not `?[?1049h` printed"
