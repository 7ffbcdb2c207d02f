"""Warnings of `check` without any cloud: fields, files, pools and timings that are probably mistakes."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from provisioner.backends import BackendError, Finding, Severity
from provisioner.backends.gke.pod_fields import unknown_fields
from provisioner.backends.mig.kind import KIND as MIG
from provisioner.commands import check
from provisioner.commands.check import check_lines
from provisioner.commands.cli import run
from provisioner.model import ErrorClass, Failure, Fingerprint, Machine, ObservationFailed, Phase, Queued, Snapshot
from tests.support.hostfactory.sites import Site, example_site, small_site

MAIN = "containers: [{name: main, image: busybox%s}]\n"


def warnings(site: Site, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the output about the pools."""
    site.write()
    assert run(["check", str(site.path), "-o", "json"]) == 0
    listed: list[str] = json.loads(capsys.readouterr().out)["warnings"]
    return [line for line in listed if not line.startswith("template ")]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return small_site(tmp_path)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param(MAIN % "", [], id="nothing"),
        pytest.param("nodeSelektor: {a: b}\n" + MAIN % "", ["spec.nodeSelektor", "mean 'nodeSelector'?"], id="a field"),
        pytest.param(
            MAIN % ", ressources: {}", ["spec.containers[0].ressources", "mean 'resources'?"], id="of a container"
        ),
        pytest.param(
            MAIN % ", resources: {request: {cpu: 1}}", ["containers[0].resources.request:", "'requests'"], id="deeper"
        ),
        pytest.param("zzz: 1\n" + MAIN % "", ["spec.zzz: no pod has such a field"], id="nothing is near"),
        pytest.param(
            "metadata: {label: {a: b}}\nspec: {containers: [{name: main, image: busybox}]}\n",
            ["metadata.label", "'labels'"],
            id="of a manifest",
        ),
        pytest.param(
            "restartPolicy: Always\n" + MAIN % "", ["spec.restartPolicy: 'Always'", "leave it out"], id="restarted"
        ),
        pytest.param(
            MAIN % ", restartPolicy: OnFailure", ["spec.restartPolicy: 'OnFailure'", "leave it out"], id="a container's"
        ),
        pytest.param(
            "nodeSelector: {anything: goes}\nvolumes: [{name: v, emptyDir: {sizeLimit: 1Gi}}]\n" + MAIN % "",
            [],
            id="mappings with free keys, and what models nest",
        ),
    ],
)
def test_a_pod_spec_that_says_what_no_pod_has(
    site: Site, capsys: pytest.CaptureFixture[str], spec: str, words: list[str]
) -> None:
    (site.directory / "spec.yaml").write_text(spec)
    listed = warnings(site, capsys)
    assert len(listed) == bool(words)
    for word in words:
        assert listed[0].startswith("pools.gke-main.pod_spec: 'spec.yaml': ")
        assert word in listed[0]


def test_every_unknown_field_is_named() -> None:
    pod = {"spec": {"a1": 1, "containers": [{}, {"b2": 1, "env": [{"c3": 1}]}], "volumes": "no list"}, "d4": {}}
    paths = [field.path for field in unknown_fields(pod)]
    assert paths == ["spec.a1", "spec.containers[1].b2", "spec.containers[1].env[0].c3", "d4"]


def test_files_that_are_not_there(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{site.directory}/none:{site.directory}/one")
    assert len(warnings(site, capsys)) == 1, "of several, one has to be there"
    (site.directory / "one").write_text("{}")
    assert warnings(site, capsys) == []
    site.settings["pools"]["gke-main"]["kubeconfig"] = "kube/config"
    site.settings["pools"]["mig-a"]["credentials"] = "key.json"
    assert warnings(site, capsys) == [
        f"pools.gke-main.kubeconfig: no such file: '{site.directory}/kube/config'",
        f"pools.mig-a.credentials: no such file: '{site.directory}/key.json'",
    ]
    (site.directory / "key.json").write_text("{}")
    assert len(warnings(site, capsys)) == 1


def test_a_pool_that_no_template_uses(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.templates[0]["pools"] = ["mig-a"]
    (listed,) = warnings(site, capsys)
    assert listed.startswith("pools.gke-main: no template uses it")


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        pytest.param({"lag_seconds": 2}, True, id="Google's own"),
        pytest.param({"lag_seconds": 2, "endpoint": "https://compute.example"}, True, id="by another way"),
        pytest.param({"lag_seconds": 2, "endpoint": "http://127.0.0.1:9"}, False, id="the embedded cloud"),
        pytest.param({"lag_seconds": 30}, False, id="as long as lists may lag"),
        pytest.param({}, False, id="the default"),
    ],
)
def test_the_timings_of_a_demonstration_on_a_real_cloud(
    site: Site, capsys: pytest.CaptureFixture[str], settings: dict[str, object], warned: bool
) -> None:
    site.settings["pools"]["mig-a"] |= settings
    listed = warnings(site, capsys)
    assert [line.startswith("pools.mig-a.lag_seconds: 2 is for the embedded cloud") for line in listed] == [
        True
    ] * warned


def test_findings_come_by_severity_and_then_in_the_order_of_the_questions(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finding(name: str) -> list[Finding]:
        return [Finding(name, Severity.WARNING, "")]

    site.settings["pools"]["unseen"] = site.settings["pools"]["mig-a"] | {"group": "other"}
    unseen = ObservationFailed("unseen", 0.0, Failure(ErrorClass.TIMEOUT, "no answer"))
    monkeypatch.setattr(check, "usable_backends", lambda *_: ({}, {}))
    monkeypatch.setattr(check, "observe", lambda *_, **__: {"unseen": unseen})
    for question in ("event", "size", "clock", "rehearsal"):
        monkeypatch.setattr(check, f"{question}_findings", lambda *_, name=question: finding(name))
    findings = check.findings_document(check.check_live(site.load(), ())[0])
    assert [one["pool"] for one in findings] == ["unseen", "clock", "rehearsal", "size", "event"], "errors are first"


class Refusing:
    """A backend whose calls all fail. The clock of its place is 25 minutes ahead of ours."""

    pool = "pods"

    def ahead(self) -> float:
        return 1500.0

    def check(self, _: float) -> list[Finding]:
        raise BackendError(ErrorClass.DENIED, "Unauthorized")

    def close(self) -> None:
        """Do nothing, because there is no connection."""


def test_a_wrong_clock_is_the_first_finding_also_if_every_call_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "usable_backends", lambda *_: ({"pods": Refusing()}, {}))
    first, second = check.findings_document(check.check_live(site.load(), ())[0])
    assert "this host's clock is 25 min behind" in first["text"]
    assert "Unauthorized" in second["text"]


class Seeing:
    """A backend with one running machine and two queued machines. Its check finds a warning, but no error."""

    pool = "hosts"

    def check(self, _: float) -> list[Finding]:
        return [Finding(self.pool, Severity.WARNING, "slow")]

    def observe(self, now: float, sought: object) -> Snapshot:
        running = Machine("hf-a", Phase.RUNNING, Fingerprint("1"))
        queued = [Machine(name, Phase.PENDING, Fingerprint(name), queued=Queued(1, "Priority")) for name in "bc"]
        return Snapshot(self.pool, now, {one.name: one for one in (running, *queued)})

    def close(self) -> None:
        """Do nothing, because there is no connection."""


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (ErrorClass.DENIED, "correct pools.jobs or its rights"),
        (ErrorClass.TIMEOUT, "let this host reach the place; try again"),
    ],
)
def test_every_kind_is_observed_and_counted_and_a_failure_has_cause_and_step(
    site: Site,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: ErrorClass,
    step: str,
) -> None:
    class Unseen(Seeing):
        pool = "jobs"

        def observe(self, now: float, sought: object) -> Snapshot:
            raise BackendError(error, "its own words")

    monkeypatch.setattr(MIG, "docs", "https://kind.example", raising=False)
    body = site.settings["pools"]["mig-a"]
    site.settings["pools"] = {"hosts": body, "jobs": {**body, "group": "other"}}
    site.templates[0]["pools"] = ["hosts", "jobs"]
    site.write()
    monkeypatch.setattr(check, "usable_backends", lambda *_: ({"hosts": Seeing(), "jobs": Unseen()}, {}))
    assert run(["check", "--live", str(site.path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"  ERROR pool jobs: cannot be observed: {error}: its own words; {step} (https://kind.example)" in lines
    (seen,) = (line for line in lines if line.startswith("  pool hosts: "))
    assert seen.endswith(": 3 machines of ours, 2 in the queue")
    (unseen,) = (line for line in lines if line.startswith("  pool jobs: "))
    assert "of ours" not in unseen
    assert run(["check", "--live", str(site.path), "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["observed"] == {"hosts": {"machines": 3, "queued": 2}}


# --- the example ------------------------------------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return example_site(tmp_path, monkeypatch)


def test_the_example_configuration_is_fine(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["pools"]) == {"gke-main", "gke-spare", "mig-a", "mig-b"}
    assert document["templates"]["Mixed"]["pools"] == ["gke-main", "mig-a"]
    assert not [text for text in document["warnings"] if text.startswith("template ")]


def test_every_mistake_is_on_stderr_and_the_code_is_2(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = example / "conf" / "provisioner.yaml"
    file.write_text(file.read_text().replace("max_pending: 100", "max_pending: ten").replace("loop:", "looop:"))
    assert run(["check", str(file)]) == 2
    errors = capsys.readouterr().err
    assert "pools.gke-main.max_pending" in errors
    assert "pools.gke-spare.max_pending" in errors
    assert "looop: unknown setting; did you mean 'loop'?" in errors


def test_check_warns_of_what_our_own_labels_replace(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = example / "conf" / "pod-specs" / "standard.yaml"
    body = textwrap.indent(spec.read_text(), "  ")
    spec.write_text(f"metadata: {{labels: {{hf-provisioner/pool: mine, app: grid}}}}\nspec:\n{body}")
    assert run(["check"]) == 0
    text = "pools.gke-main.pod_spec: 'standard.yaml': metadata.labels.hf-provisioner/pool: is set by the provisioner"
    assert f"WARNING {text}" in capsys.readouterr().out
    assert run(["check", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"][0] == text


@pytest.mark.parametrize(
    ("most", "said"), [(0, "a, none, because maxNumber is 0"), (None, "a, any number"), (7, "a, at most 7")]
)
def test_a_maximum_of_0_is_none(most: int | None, said: str) -> None:
    limits = {"pools": ["a"], "max_machines": most}
    document = {"id": "x", "name_prefix": "hf", "pools": {}, "templates": {"T": limits}, "warnings": []}
    assert said in "\n".join(check_lines(document))


@pytest.mark.parametrize(
    ("severities", "warnings", "words"),
    [
        (None, 0, "Fine"),
        (None, 1, "1 warning"),
        ([], 0, "Fine"),
        (["refused", "error", "warning"], 2, "2 errors, 3 warnings"),
        (["error"], 0, "1 error"),
        (["note"], 0, "Fine"),
    ],
)
def test_errors_and_warnings_are_counted_and_come_first(
    severities: list[str] | None, warnings: int, words: str
) -> None:
    document = {"id": "x", "name_prefix": "hf", "pools": {"a": {"kind": "gke", "place": []}}, "templates": {}}
    document["warnings"] = ["doubtful"] * warnings
    if severities is not None:
        document["findings"] = [{"pool": "a", "severity": one, "text": "found"} for one in severities]
    first, *lines = check_lines(document)
    assert first == f"{words}: provisioner x, machines named hf-…"
    listed = [f"  {one.upper()} pool a: found" for one in severities or ()] + ["  WARNING doubtful"] * warnings
    assert lines[: len(listed) + 1] == [*listed, "  pool a: gke"]
