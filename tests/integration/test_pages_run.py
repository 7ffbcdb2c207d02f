"""Each command that README and docs show. The real program runs it in a site with a loop on the embedded cloud."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.commands.holds import VERBS
from provisioner.lab.playground import Playground
from provisioner.state.directory import StateDir
from tests.support.pages import ROOT, Command, commands
from tests.support.waiting import PATIENCE, until

SECONDS = 120.0 * PATIENCE

DOCUMENTED = {
    "hf-k3v9x2m7qa-000004": "machine",
    "k2v9x0a7qd": "request",
    "Grid8": "template",
}
"""Ids in the pages, and what of the site they stand for."""

NOT_RUN = {
    "provisioner demo": "a minute; .ci/run runs `make demo`",
    "provisioner simulate": "the whole catalogue: minutes; tests/simulation plays it",
    "provisioner simulate step few --seeds 100": "minutes; tests/simulation plays both",
    "provisioner simulate --show stockout-first > own.yaml": "own_files() writes a shorter one",
    "provisioner dump /backup/demoinst.tar.gz": "a directory of the site's; test_restore_drill.py dumps and restores",
    "provisioner restore /backup/demoinst.tar.gz": "the same",
    "provisioner state copy --from /opt/hf/work/providers/gkeinst --to kubernetes:hostfactory": (
        "a directory and an API server of the site's; tests/unit/commands/test_state.py copies"
    ),
    "provisioner return hf-k3v9x2m7qa-000004": "other pages show this machine; tests/unit/commands/test_requests.py",
    "provisioner run": "test_what_runs_until_it_is_ended, with a port of its own",
}
"""The reasons why commands are not run here."""

EXITS = {
    "provisioner events --seconds 60": 2,  # the example has no subscription; tests/integration/test_pubsub.py has
}
"""Exit codes other than 0 that are right here, beside those of EITHER."""

EITHER = {  # before and after the files were written
    "provisioner render-hf config/hf/settings.yaml --out hf --dry-run": {0, 1},
}

WALKED = "first-machine.md"
"""A page whose blocks test_first_machine.py runs in their order."""

pytestmark = pytest.mark.slow


class Prepared:
    """The site: a playground with machines that HostFactory lists, and a directory in which commands are typed."""

    def __init__(self, playground: Playground, directory: Path) -> None:
        self.playground = playground
        self.directory = directory
        id_ = playground.hf.request("GkePod", 5)
        until(lambda: playground.hf.status(id_)["status"] == "complete", 120.0, every=0.3, what="machines run")
        names = [machine["name"] for machine in playground.hf.status(id_)["machines"]]
        playground.hf.reclaimed(names)
        self.ids = {"request": id_, "machine": names[0], "template": "GkePod"}
        for name in ("config", "deploy", "docs", "hf_scripts", "Makefile", "README.md"):
            (directory / name).symlink_to(ROOT / name)
        bin_ = directory / "bin"
        bin_.mkdir()
        (bin_ / "provisioner").write_text(f'#!/bin/sh\nexec {sys.executable} -m provisioner "$@"\n')
        (bin_ / "provisioner").chmod(0o755)
        self.environment = {
            **os.environ,
            **playground.environment,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "KUBECONFIG": playground.addresses["kubeconfig"],
            "PROVISIONER_COMPUTE_ENDPOINT": playground.addresses["compute"],
            "TMPDIR": str(directory),
            "HF_TOP": str(directory / "hf"),
        }
        self.own_files()

    def own_files(self) -> None:
        """Write the files that, according to the pages, an operator has written before."""
        shown = self.run("provisioner simulate --show few").stdout
        for name in ("now.yaml", "then.yaml"):
            (self.directory / name).write_text(shown)
        (self.directory / "own.yaml").write_text(shown.replace("few:", "night:", 1))
        source = "{kind: fixed, template: GkePod, machines: 1}"
        Path(self.playground.environment["HF_PROVIDER_CONFDIR"], "demand.yaml").write_text(
            f"sources: {{base: {source}}}\n"
        )

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        for documented, what in DOCUMENTED.items():
            line = line.replace(documented, self.ids[what])
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def let_go(self) -> None:
        """Release all holds apart from cancels, so that the next command meets no pause, drain or stop-all."""
        for kind, target in [(hold.kind, hold.target) for hold in StateDir(self.playground.state).holds.read().current]:
            if kind != "cancel":
                self.run("provisioner start-all" if kind == "stop-all" else f"provisioner resume {target}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    with Playground() as playground:
        yield Prepared(playground, tmp_path_factory.mktemp("typed"))


def runnable() -> list[Command]:
    """Return each distinct command line of ours. Holds, requests and returns come last, because they change the results
    of other lines."""
    lines: dict[str, Command] = {}
    for command in filter(is_runnable, commands()):
        lines.setdefault(command.text, command)
    return sorted(
        lines.values(), key=lambda one: ("/requestReturn" in one.text, is_hold(one) or "/request" in one.text)
    )


def is_hold(command: Command) -> bool:
    return any(call[0] == "provisioner" and call[1] in VERBS for call in command.calls)


def is_runnable(command: Command) -> bool:
    """Return True if all programs of a line are ours and the tests can run it. Return False if the page only shows the
    form of a command, or if another test runs the page's blocks."""
    if command.page == WALKED and not command.inline:
        return False
    ours = [one for one in command.programs if one == "provisioner" or one.startswith("hf_scripts/")]
    beside = set(command.programs) - set(ours) - {"eval", "mkdir", "export"}
    if not ours or beside or command.is_form:
        return False
    return not (command.inline and len(command.calls[0]) == 2 and command.text.split()[1] in NEEDS_MORE)


NEEDS_MORE = {
    "dump", "restore", "explain", "render-hf", "replay", "pause", "resume", "drain", "cancel", "stop-all", "completion",
    "simulator", "demand", "request", "return",
}  # fmt: skip
"""Commands that a sentence names, and that are no call without arguments or an end."""


@pytest.mark.timeout(600 * PATIENCE)
def test_every_command_of_the_pages_ends_as_its_page_says(site: Prepared) -> None:
    wrong = []
    lines = [one for one in runnable() if one.text not in NOT_RUN and "provisioner simulator" not in one.text]
    assert len(lines) > 40
    for command in lines:
        done = site.run(command.text)
        if is_hold(command):
            site.let_go()
        right = EITHER.get(command.text, {EXITS.get(command.text, 0)})
        if done.returncode not in right or "Traceback" in done.stderr:
            wrong.append(f"{command.where}\n  ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
    assert not wrong, "\n".join(wrong)


def test_each_exception_is_still_needed() -> None:
    shown = {command.text for command in commands()}
    assert {*NOT_RUN, *EXITS, *EITHER} <= shown


@pytest.mark.parametrize(
    "line", ["provisioner run", "provisioner simulator --config config/demoinst --faults config/demoinst/cloud.json"]
)
def test_a_command_that_runs_until_it_is_ended_ends_with_0(site: Prepared, line: str) -> None:
    assert line in {command.text for command in commands()}
    state = site.directory / "alone"
    state.mkdir(exist_ok=True)
    own = {"HF_PROVIDER_WORKDIR": str(state), "HF_PROVIDER_NAME": "demoinst"}
    line += " --listen 127.0.0.1:0" if line.endswith("run") else ""
    log = site.directory / "said"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=site.directory, env={**site.environment, **own}, stdout=out, stderr=out
        )
        try:
            until(lambda: "127.0.0.1" in log.read_text(), 120.0, every=0.1, what=f"{line} says where it answers")
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(SECONDS)
    assert (code, "Traceback" in log.read_text()) == (0, False)


@pytest.mark.parametrize("tool", ["kubectl", "gcloud"])
def test_options_of_other_tools_are_known_to_them(tool: str, tmp_path: Path) -> None:
    """At the end of each line, add an option that the tool does not know. The tool must complain about this option
    alone."""
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    calls = [(command, call) for command in commands() for call in command.calls if call[0] == tool]
    assert calls, "take the tool out of this test, or out of no page"
    environment = {**os.environ, "CLOUDSDK_CONFIG": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
    for command, call in calls:
        done = subprocess.run(
            [*call, "--no-such-flag"], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        complaint = [line for line in done.stderr.splitlines() if "flag" in line or "unrecognized" in line]
        assert done.returncode != 0
        assert "--no-such-flag" in complaint[0], f"{command.where}: {done.stderr[:300]}"
