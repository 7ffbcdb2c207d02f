"""``deploy/gcp/setup.sh``. gcloud accepts its command lines. The script can be run again, and its effects can be
undone. Terraform makes the same resources."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.commands.cli import run as provisioner
from provisioner.lab.cloud.server import Simulator
from tests.support.checks.terraform import Block, Module, overlay_values, plain
from tests.support.clients.compute_clients import Gcloud
from tests.support.clients.terraform import RENDERED, TERRAFORM
from tests.support.clouds.specs import advised
from tests.support.pages import blocks_of
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "deploy" / "gcp" / "setup.sh"
SCRIPTS = ROOT / "deploy" / "machine"
STUB = ROOT / "tests" / "support" / "clients" / "gcloud_stub.sh"
GCLOUD = pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs gcloud")

IMAGE = "us-central1-docker.pkg.dev/my-grid-project/hf/worker:1"
SOME = ["--project=my-grid-project", "--region=us-central1"]
ALL = [
    *("--project", "my-grid-project", "--region", "us-central1", "--symphony-range", "10.0.0.0/16"),
    *("--group", "a:us-central1-a", "--group", "any:us-central1:spot", "--share", "us-central1-b"),
    *("--secret", "hostfactory-metrics-token", "--secret", "hostfactory-proxy"),
    *("--startup-script", str(SCRIPTS / "startup.sh"), "--metadata", "hf-ego-master=master1.bank.example"),
    *("--metadata-from-file", f"hf-machine-lib={SCRIPTS / 'lib.sh'}"),
    *("--maintenance", "2026-01-03T22:00:00Z/2026-01-04T04:00:00Z/FREQ=WEEKLY;BYDAY=SA,SU"),
    *("--authorized-range", "198.51.100.0/28", "--pod-image", IMAGE, "--pod-env", "HF_EGO_MASTER=master1.bank.example"),
]
ON_SIMULATOR = {"compute instance-groups managed describe", "compute instance-templates describe"}
"""The script's commands that gcloud can run on the simulator. Of the script's other commands, only the syntax is
checked."""
DNS = "gke-0123456789abcdef.us-central1.gke.goog"
"""The DNS endpoint of the cluster."""
CHANGING = re.compile(r"(create|create-auto|delete|undelete)$")
Argv = tuple[str, ...]


class Google:
    """A Google project as setup.sh sees it. A stand-in for gcloud stores the resources in files."""

    def __init__(self, directory: Path, like: Google | None = None) -> None:
        """Begin with the resources of the project ``like``, or without resources."""
        self._calls, self._things = directory / "calls", directory / "things"
        self._things.mkdir(parents=True)
        (directory / "bin").mkdir()
        shutil.copy(STUB, directory / "bin" / "gcloud")
        if like is not None:
            shutil.copytree(like._things, self._things, dirs_exist_ok=True)
        self._environment = {
            **os.environ,
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "CALLS": str(self._calls),
            "THINGS": str(self._things),
            "CLUSTER_CA": str(RENDERED / "cluster-ca.crt"),
            "DELETED": "",
            "DNS": DNS,
            "MOUNTS": "True",
            "BOUND": "yes",
        }

    def setup(self, *options: str, **more: str) -> list[Argv]:
        """Run setup.sh, and return the calls of gcloud that it made."""
        return self.calls_of([str(SETUP), *options], **more)

    def calls_of(self, command: Sequence[str], directory: Path | None = None, **more: str) -> list[Argv]:
        """Run a command in a directory, and return the calls of gcloud that it made."""
        self._calls.write_text("")
        self.done = subprocess.run(
            command,
            env=self._environment | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * PATIENCE,
            cwd=directory,
        )
        return [words(line) for line in self._calls.read_text().splitlines()]

    def things(self) -> set[str]:
        """Return the names of all resources."""
        return {path.name for path in self._things.iterdir()}


def words(line: str) -> Argv:
    """Return the words of a line as bash prints it. In such a line, a word with line ends, such as a filter, is written
    as $'…'."""
    return tuple(shlex.split(re.sub(r"\$'((?:[^'\\]|\\.)*)'", lambda found: shlex.quote(unescaped(found[1])), line)))


def unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\'", "'").replace("\\\\", "\\")


@pytest.fixture
def google(tmp_path: Path) -> Google:
    return Google(tmp_path / "google")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Google, list[Argv]]:
    """Return a project in which setup.sh has made everything, and the calls that it made."""
    google = Google(tmp_path_factory.mktemp("setup") / "google")
    calls = google.setup(*ALL, "--apply")
    assert google.done.returncode == 0, google.done.stderr
    return google, calls


@pytest.fixture
def filled(first: tuple[Google, list[Argv]], tmp_path: Path) -> Google:
    """Return a project for one test, in which setup.sh has already made everything."""
    return Google(tmp_path / "filled", first[0])


@pytest.fixture(scope="module")
def made(first: tuple[Google, list[Argv]]) -> list[Argv]:
    """Return the calls that make everything in an empty project. Leave out calls that only read."""
    return [call for call in first[1] if not {"describe", "list"} & {*call}]


@pytest.fixture(scope="module")
def every(first: tuple[Google, list[Argv]], tmp_path_factory: pytest.TempPathFactory) -> list[Argv]:
    """Return the calls of setup.sh in all its modes. They include calls that only read, and calls that restore a
    deleted role."""
    google = Google(tmp_path_factory.mktemp("every") / "google", first[0])
    autopilot = Google(tmp_path_factory.mktemp("autopilot") / "google")
    return [
        *first[1],
        *google.setup(*ALL, "--apply", DELETED="True", MOUNTS=""),
        *google.setup(*ALL, "--destroy", "--apply"),
        *autopilot.setup(*ALL, "--cluster", "autopilot", "--endpoint", "dns", "--apply"),
        *autopilot.setup(*ALL, "--cluster", "autopilot", "--endpoint", "dns", "--apply"),
    ]


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(TERRAFORM)


# --- what it does -----------------------------------------------------------------------------------------------------


def test_by_default_it_prints_the_lines_and_calls_no_cloud(google: Google, made: list[Argv], tmp_path: Path) -> None:
    assert google.setup(*ALL) == []
    assert google.done.returncode == 0
    assert google.done.stderr == "# No command was run: --apply runs them.\n"
    script = google.done.stdout.replace("PROJECT_NUMBER", "123456")
    script = script.replace("WRITER_OF_THE_SINK", "serviceAccount:writer@example.com")
    assert google.calls_of(["bash", "-euc", script]) == made


def test_only_missing_resources_are_made(filled: Google) -> None:
    before = filled.things()
    for options, added in (([], []), (["--group", "b:us-central1-b"], ["hf-b", "hf-b"])):  # the template and the group
        again = filled.setup(*ALL, *options, "--apply")
        assert filled.done.returncode == 0, filled.done.stderr
        assert [named(call)[-1] for call in again if any(CHANGING.match(word) for word in call)] == added
        assert filled.things() >= before


def test_destroy_takes_all_away_in_the_reverse_order_and_may_be_repeated(filled: Google, made: list[Argv]) -> None:
    taken = [named(call) for call in filled.setup(*ALL, "--destroy", "--apply") if "delete" in call]
    assert filled.done.returncode == 0, filled.done.stderr
    assert filled.things() == set()
    assert taken == [named(call) for call in reversed(made) if {"create", "create-auto"} & {*call}]
    again = filled.setup(*ALL, "--destroy", "--apply", BOUND="")
    assert filled.done.returncode == 0, filled.done.stderr
    assert "# It was not bound.\n" in filled.done.stderr
    assert not any("services" in call for call in again), "APIs stay on"


def test_destroy_leaves_the_resources_that_the_page_lists(filled: Google, made: list[Argv], module: Module) -> None:
    """Expect that ``--destroy`` leaves only the resources that the page lists. It must revoke all roles that setup.sh
    has granted in the project, except the role of Google's agent."""
    section = (ROOT / "docs" / "deploy-google.md").read_text().partition("\n## To remove it\n")[2]
    left = dict(re.findall(r"(?m)^\| (.+?) \| (.+?) \| .+ \|$", section))

    def of(verb: str, calls: list[Argv]) -> set[tuple[str, str]]:
        return {(value(call, "member"), value(call, "role")) for call in calls if call[:2] == ("projects", verb)}

    granted = of("add-iam-policy-binding", made)
    revoked = of("remove-iam-policy-binding", filled.setup(*ALL, "--destroy", "--apply"))
    agent = ("serviceAccount:123456@cloudservices.gserviceaccount.com", "roles/compute.instanceAdmin.v1")
    assert granted - revoked == {agent}
    assert left[f"`{agent[1]}` of Google's agent"] == "`setup.sh`"
    assert agent[1] in str(module.of("google_project_iam_member")["agent"]), "Terraform takes it away"
    assert all(api["disable_on_destroy"] is False for api in module.of("google_project_service").values())
    both = ("the APIs, switched on", "custom roles, deleted", "service accounts, deleted")
    assert {left[resource] for resource in both} == {"both tools"}
    assert not [type_ for type_, _ in module.resources if "bucket" in type_ or "identity_pool" in type_]


@pytest.mark.parametrize(
    "failing", ["projects describe", "filestore instances describe", "remove-iam-policy-binding", "delete"]
)
def test_destroy_takes_no_other_error_for_what_is_gone(filled: Google, failing: str) -> None:
    before = filled.things()
    filled.setup(*ALL, "--destroy", "--apply", FAILING=failing)
    assert filled.done.returncode == 1
    assert "auth tokens: invalid_grant\n" in filled.done.stderr
    assert filled.things(), "not all is gone"
    if failing != "remove-iam-policy-binding":
        assert filled.things() == before
    if failing != "delete":  # which says it by itself
        assert "(an expired login: gcloud auth login), and run the same again" in filled.done.stderr


def test_gcloud_asks_no_hidden_question(google: Google) -> None:
    google.setup(*ALL, "--apply", ASKING="yes")
    assert google.done.returncode == 0, google.done.stderr


@pytest.mark.parametrize("failing", ["projects describe", "service-accounts describe"])
def test_nothing_is_made_while_the_existing_resources_are_unknown(google: Google, failing: str) -> None:
    calls = google.setup(*ALL, "--apply", FAILING=failing)
    assert google.done.returncode == 1
    assert "invalid_grant" in google.done.stderr
    assert [call for call in calls if CHANGING.search(" ".join(call[:4]))] == []
    assert google.things() == set()


ABSENT = """\
ERROR: (gcloud.iam.roles.describe) NOT_FOUND: The role named projects/p/roles/r was not found.
ERROR: (gcloud.container.clusters.describe) ResponseError: code=404, message=Not found: projects/p
 - The resource 'n' was not found
ERROR: (gcloud.logging.sinks.describe) NOT_FOUND: Sink hf-events does not exist"""
BROKEN = """\
ERROR: (gcloud.filestore.instances.describe) PERMISSION_DENIED: API not enabled on project
ERROR: (gcloud.auth) There was a problem refreshing your current auth tokens: invalid_grant
bash: gcloud: command not found"""


def test_only_what_gcloud_says_of_absent_things_counts_as_absent() -> None:
    (pattern,) = re.findall(r"(?m)^absent='(.+)'$", SETUP.read_text())
    assert [line for line in f"{ABSENT}\n{BROKEN}".splitlines() if re.search(pattern, line)] == ABSENT.splitlines()


def test_two_deployments_of_a_project_share_nothing(google: Google) -> None:
    groups = ["--group", "a:us-central1-a", "--share", "us-central1-b"]
    google.setup(*SOME, *groups, "--apply")
    first = google.things()
    google.setup(*SOME, *groups, "--prefix", "grid-b", "--apply")
    assert google.done.returncode == 0, google.done.stderr
    assert len(google.things() - first) == len(first)
    google.setup(*SOME, *groups, "--prefix", "grid-b", "--destroy", "--apply")
    assert google.things() == first


@pytest.mark.parametrize("kind", ["standard", "autopilot"])
def test_google_upgrades_in_the_window_that_is_given(google: Google, kind: str) -> None:
    window = ("2026-01-03T22:00:00Z", "2026-01-04T04:00:00Z", "FREQ=WEEKLY;BYDAY=SA,SU")
    for _ in ("made", "there"):
        calls = google.setup(*SOME, "--cluster", kind, "--maintenance", "/".join(window), "--apply")
        (update,) = [call for call in calls if call[:3] == ("container", "clusters", "update")]
        assert tuple(value(update, f"maintenance-window-{part}") for part in ("start", "end", "recurrence")) == window
    google.setup(*SOME, "--cluster", kind, "--maintenance", "/".join(window), "--destroy", "--apply")
    assert google.done.returncode == 0
    assert "maintenance" not in google.done.stdout


def test_groups_have_the_disk_that_is_asked_for(google: Google, module: Module) -> None:
    def disk(*options: str) -> tuple[str, str]:
        calls = google.setup(*SOME, "--group", "a:us-central1-a", *options, "--apply")
        (template,) = [call for call in calls if call[:3] == ("compute", "instance-templates", "create")]
        return value(template, "boot-disk-type"), value(template, "boot-disk-size")

    defaults = dict(re.findall(r"disk_(\w+) +=\s+optional\(\w+, \"?([\w-]+)\"?\)", variable(module, "groups")))
    assert disk() == (defaults["type"], f"{defaults['gb']}GB")
    asked = ("--machine", "n4-standard-8", "--disk-type", "hyperdisk-balanced", "--disk-size", "80")
    assert disk("--prefix", "b", *asked) == ("hyperdisk-balanced", "80GB")


def variable(module: Module, name: str) -> str:
    """Return the block of a variable in ``variables.tf``."""
    return (module.directory / "variables.tf").read_text().partition(f'variable "{name}"')[2].partition("\n}")[0]


def test_a_role_that_was_deleted_lately_is_brought_back(filled: Google) -> None:
    calls = [call[:3] for call in filled.setup(*ALL, "--apply", DELETED="True") if call[:2] == ("iam", "roles")]
    assert calls.count(("iam", "roles", "undelete")) == calls.count(("iam", "roles", "update")) == 2


WRONG = """\
: --project is missing: the id of a project with billing enabled
--project p: --region '' is no region such as us-central1
--project p --region us-central1-a: --region 'us-central1-a' is no region such as us-central1
--region: --region needs a value
--aply: unknown option --aply
ALL --prefix Grid_: --prefix 'Grid_': at most 20 lower-case letters, digits or '-'
ALL --cluster gke: --cluster 'gke' is none of standard, autopilot, none
SOME --cluster none --secret s: --secret 's' is mounted by a cluster, and --cluster is none
ALL --share us-east1-b: --share 'us-east1-b' is no zone of us-central1, such as us-central1-a
ALL --startup-script /no/such: startup-script: '/no/such' cannot be read
ALL --metadata-from-file hf-machine-lib=/no/such: hf-machine-lib: '/no/such' cannot be read
ALL --metadata hf-ego-master=one,two: --metadata 'hf-ego-master=one,two' is not KEY=VALUE, \
such as hf-ego-master=master1; a value with commas goes into a file
ALL --metadata-from-file lib.sh: --metadata-from-file 'lib.sh' is not KEY=FILE without commas, \
such as hf-machine-lib=lib.sh
ALL --endpoint internal: --endpoint 'internal' is none of public, private, dns, none
ALL --credentials federation.json: --credentials 'federation.json' is no path such as /etc/hostfactory/federation.json
ALL --pod-cpus 3.5: --pod-cpus '3.5' is no number of whole cores
ALL --pod-memory 12Gi: --pod-memory '12Gi' is no number of MB
ALL --pod-env 'A="b"': --pod-env 'A="b"' is not KEY=VALUE without quotes, such as HF_EGO_MASTER=master1
SOME --pod-image i: --pod-image needs --pod-env HF_EGO_MASTER=HOST, EGO's management host: \
without it a pod joins nothing
SOME --pod-image i --cluster none: --pod-image needs a cluster, and --cluster is none
ALL --group pods:us-central1-a: --group: pods and pods-spot are the pools of --pod-image; choose another name
ALL --group b:europe-west1-b:spot: --group 'b:europe-west1-b:spot' lies in europe-west1-b, and its subnet in us-central1
ALL --maintenance 22:00: --maintenance '22:00' is not START/END/RECURRENCE, \
such as 2026-01-03T22:00:00Z/2026-01-04T04:00:00Z/FREQ=DAILY
ALL --disk-size 50GB: --disk-size '50GB' is no number of GB
SOME --settings settings.yaml: --settings needs a --group or --pod-image
ALL --group a: --group 'a' is not NAME:PLACE or NAME:PLACE:spot, such as a:us-central1-a or any:us-central1:spot
"""
"""Options with their descriptions, separated by a colon."""


@pytest.mark.parametrize("line", WRONG.splitlines())
def test_a_wrong_use_is_one_sentence(google: Google, line: str) -> None:
    options, _, explanation = line.partition(": ")
    given = [word for one in shlex.split(options) for word in {"ALL": ALL, "SOME": SOME}.get(one, [one])]
    assert google.setup(*given, "--apply") == []
    assert (google.done.returncode, google.done.stdout) == (2, "")
    assert google.done.stderr == f"setup.sh: {explanation}; see setup.sh --help\n"


def test_the_help_lists_every_option(google: Google) -> None:
    google.setup("--help")
    taken = set(
        re.findall(
            r"(?<=[ (|])--[a-z-]+(?= ?\)| \|)",
            SETUP.read_text().partition("while [ $# -gt 0 ]")[2].partition("done")[0],
        )
    )
    assert len(taken) > 15
    assert {option for option in taken if option not in google.done.stdout} == {"--help"}


class Site:
    """HostFactory's files of a grid. ``render-hf`` makes them from the settings that setup.sh writes."""

    def __init__(self, google: Google, directory: Path) -> None:
        self._google = google
        self.settings = directory / "settings.yaml"
        self._out = directory / "hf"
        self.made = self._out / "conf" / "providers" / "gcpinst"

    def make(self, *options: str) -> dict[str, Any]:
        """Make the files, and check that they are a valid configuration. Return its pools."""
        self._google.setup(*ALL, *options, "--apply", "--settings", str(self.settings))
        assert self._google.done.returncode == 0, self._google.done.stderr
        assert provisioner(["render-hf", str(self.settings), "--out", str(self._out)]) == 0
        assert provisioner(["check", str(self.made / "provisioner.yaml")]) == 0
        pools: dict[str, Any] = yaml.safe_load((self.made / "provisioner.yaml").read_text())["pools"]
        return pools


@pytest.fixture
def site(google: Google, tmp_path: Path) -> Site:
    return Site(google, tmp_path)


def test_render_hf_accepts_the_settings_that_it_writes_and_prints(
    google: Google, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """``render-hf`` must accept the settings that setup.sh writes and prints. The templates must promise the resources
    that the machine type and the pods have."""
    site.make()
    printed = google.done.stdout.partition("# Settings for provisioner render-hf:\n")[2]
    assert "".join(line.removeprefix("# ") for line in printed.splitlines(keepends=True)) == site.settings.read_text()
    output = capsys.readouterr().out
    assert "template Large: any → a, at most 2000" in output
    assert "template Small: pods-spot → pods, at most 1000" in output
    small, large = json.loads((site.made / "gcpinstprov_templates.json").read_text())["templates"]
    assert (small["attributes"]["ncpus"], small["attributes"]["nram"]) == (["Numeric", "3"], ["Numeric", "12288"])
    assert (large["attributes"]["ncpus"], large["attributes"]["nram"]) == (["Numeric", "8"], ["Numeric", "32768"])


def test_the_page_of_the_first_machine_goes_on_with_what_it_writes(
    google: Google, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the two blocks of docs/first-machine.md for users without Terraform. The first block runs in a clone. Its
    directory ``google`` is then copied into a home directory, where the second block runs."""
    page = (ROOT / "docs" / "first-machine.md").read_text()
    lines = [block.partition(", without Terraform\n")[2] for block in blocks_of(page)]
    setup, take = filter(None, lines)
    clone, home = tmp_path / "clone", tmp_path / "home"
    clone.mkdir()
    (clone / "deploy").symlink_to(ROOT / "deploy")
    calls = google.calls_of(["bash", "-euc", setup], clone)
    assert google.done.returncode == 0, google.done.stderr
    files = [word.partition("=")[2] for call in calls for word in call if word.startswith("--metadata-from-file=")]
    assert {name.partition("=")[0] for one in files for name in one.split(",")} == {
        *("startup-script", "hf-machine-lib", "shutdown-script")
    }

    shutil.copytree(clone / "google", home / "google")
    shutil.copy(ROOT / "config" / "hf" / "google.yaml", home / "settings.yaml")
    google.calls_of(["bash", "-euc", take], home)
    assert google.done.returncode == 0, google.done.stderr
    assert provisioner(["render-hf", str(home / "settings.yaml"), "--out", str(home)]) == 0
    made = home / "conf" / "providers" / "gcpinst"
    assert provisioner(["check", str(made / "provisioner.yaml")]) == 0
    assert "pool pods" in capsys.readouterr().out
    spec = yaml.safe_load((made / "pod-specs" / "pods.yaml").read_text())["spec"]
    assert f"docker push {spec['containers'][0]['image']}\n" in page


@pytest.mark.parametrize(("endpoint", "address"), [("public", "203.0.113.7"), ("private", "10.60.0.2"), ("dns", DNS)])
def test_its_pods_name_the_cluster_by_address_and_authority(site: Site, endpoint: str, address: str) -> None:
    """The pods' settings must be the same as with Terraform: the cluster's address and its CA file. The DNS endpoint
    needs no CA file."""
    pools = site.make("--endpoint", endpoint)
    assert {pools[name]["endpoint"] for name in ("pods", "pods-spot")} == {f"https://{address}"}
    if endpoint == "dns":
        assert "ca_file" not in pools["pods"]
        assert not (site.made / "cluster-ca.crt").exists()
    else:
        assert (site.made / pools["pods"]["ca_file"]).read_text() == (RENDERED / "cluster-ca.crt").read_text()


def test_a_loop_that_is_a_pod_has_the_account_of_its_pod(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the loop is a pod, the settings must name no endpoint and no CA file, as with Terraform and ``endpoint =
    null``. The files that the pod mounts must be a valid configuration."""
    pools = site.make("--endpoint", "none")
    assert not (tmp_path / "cluster-ca.crt").exists()
    assert {"endpoint", "ca_file"}.isdisjoint(pools["pods"])
    capsys.readouterr()
    assert provisioner(["configmap", "--config", str(site.made)]) == 0
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for name, text in yaml.safe_load(capsys.readouterr().out)["data"].items():
        (mounted / name).write_text(text)
    assert yaml.safe_load((mounted / "provisioner.yaml").read_text())["pools"].keys() == pools.keys()
    assert provisioner(["check", str(mounted / "provisioner.yaml")]) == 0


def test_its_pools_log_in_by_the_federation_that_is_named(site: Site) -> None:
    pools = site.make("--credentials", "/etc/hostfactory/federation.json")
    assert pools.keys() == {"a", "any", "pods", "pods-spot"}
    assert {pool["credentials"] for pool in pools.values()} == {"/etc/hostfactory/federation.json"}


@pytest.mark.parametrize("cluster", ["standard", "autopilot"])
def test_its_pods_are_those_of_terraform_but_on_autopilot_they_choose_no_node_pool(
    google: Google, tmp_path: Path, cluster: str
) -> None:
    google.setup(*ALL, "--cluster", cluster, "--apply", "--settings", str(tmp_path / "settings.yaml"))
    for name in ("pods", "pods-spot"):
        theirs = yaml.safe_load((RENDERED / "pod-specs" / f"{name}.yaml").read_text())
        theirs["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "3"
        ours = yaml.safe_load((tmp_path / "pod-specs" / f"{name}.yaml").read_text())
        if cluster == "standard":
            assert ours == theirs
        else:
            spot = {"cloud.google.com/gke-spot": "true"} if name == "pods-spot" else {}
            assert ours["spec"]["nodeSelector"] == spot
            assert name == "pods-spot" or ours["spec"]["tolerations"] == []


def test_the_dns_endpoint_is_opened_and_the_loop_s_account_let_in_where_it_is_asked_for(
    google: Google, module: Module, made: list[Argv]
) -> None:
    assert "--enable-dns-access" not in {word for call in made for word in call}
    calls = google.setup(*ALL, "--prefix", "b", "--endpoint", "dns", "--apply")
    (cluster,) = [call for call in calls if call[:3] == ("container", "clusters", "create")]
    assert "--enable-dns-access" in cluster
    (role,) = [call for call in calls if call[:3] == ("iam", "roles", "create") and "b_provisioner_cluster" in call]
    assert Path(value(role, "file")).relative_to(TERRAFORM) == Path("roles/cluster.yaml")
    assert "roles/cluster.yaml" in module.text
    (given,) = [call for call in calls if any(word.endswith("/b_provisioner_cluster") for word in call)]
    assert value(given, "member") == "serviceAccount:b-loop@my-grid-project.iam.gserviceaccount.com"


def test_a_cluster_that_is_there_is_reached_by_what_is_asked_for_now(
    filled: Google, made: list[Argv], tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    (before,) = [call for call in made if call[:3] == ("container", "clusters", "create")]
    assert value(before, "master-authorized-networks") == "10.0.0.0/16,198.51.100.0/28"
    calls = filled.setup(
        *ALL, "--endpoint", "dns", "--authorized-range", "192.0.2.0/24", "--settings", str(settings), "--apply"
    )
    assert filled.done.returncode == 0, filled.done.stderr
    cluster, _ = [call for call in calls if call[:3] == ("container", "clusters", "update")]
    assert "--enable-dns-access" in cluster
    assert value(cluster, "master-authorized-networks") == "10.0.0.0/16,198.51.100.0/28,192.0.2.0/24"
    assert DNS in settings.read_text()


def test_a_cluster_without_the_endpoint_that_is_asked_for_ends_it(google: Google, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    google.setup(*ALL, "--endpoint", "dns", "--settings", str(settings), "--apply", DNS="")
    assert google.done.returncode != 0
    assert "cluster hf has no dns endpoint: choose another by --endpoint" in google.done.stderr
    assert not settings.exists()


def test_the_values_that_it_prints_are_values_of_the_overlay(first: tuple[Google, list[Argv]], module: Module) -> None:
    section = first[0].done.stdout.partition("values.yaml:\n")[2].partition("# Settings for provisioner render-hf")[0]
    printed = yaml.safe_load("\n".join(line.removeprefix("# ") for line in section.splitlines()))
    values = yaml.safe_load((ROOT / "deploy/kustomize/overlays/gke-workload-identity/values.yaml").read_text())["data"]
    assert printed == {
        "instance": "gcpinst",
        "image": "us-central1-docker.pkg.dev/my-grid-project/hf/provisioner:VERSION",
        "nodesServiceAccount": "hf-nodes@my-grid-project.iam.gserviceaccount.com",
        "apiServer": "10.60.0.2/32",
        "googleServiceAccount": "hostfactory-provisioner@my-grid-project.iam.gserviceaccount.com",
        "nfsServer": "10.9.8.2",
        "nfsPath": "/state",
    }
    assert printed.keys() <= values.keys()
    assert printed.keys() == overlay_values(module), "Terraform names the same"


def test_a_cluster_enforces_network_policies_and_mounts_secrets_where_one_is_named(google: Google) -> None:
    def cluster(*options: str) -> Argv:
        (call,) = [one for one in google.setup(*options, "--apply") if "clusters" in one and "describe" not in one]
        return call

    assert "--enable-dataplane-v2" in cluster(*SOME)
    assert "--enable-secret-manager" not in cluster(*SOME, "--prefix", "b")
    assert "--enable-secret-manager" in cluster(*SOME, "--prefix", "c", "--secret", "s")
    autopilot = cluster(*SOME, "--prefix", "d", "--cluster", "autopilot", "--secret", "t")
    assert "--enable-secret-manager" in autopilot
    assert "--enable-dataplane-v2" not in autopilot  # which gcloud refuses there, as it is always on


def test_a_cluster_that_is_there_mounts_secrets_once_one_is_named(google: Google) -> None:
    def updates(*options: str, **more: str) -> list[Argv]:
        return [call for call in google.setup(*SOME, *options, "--apply", **more) if "update" in call]

    assert updates() == updates() == []
    (update,) = updates("--secret", "s", MOUNTS="")
    assert "--enable-secret-manager" in update
    assert updates("--secret", "s", MOUNTS="True") == []


# --- gcloud knows its lines -------------------------------------------------------------------------------------------


@GCLOUD
def test_gcloud_has_every_option(every: list[Argv]) -> None:
    """Check the options by gcloud's own table of commands."""
    tree = gcloud_table()
    assert [problem for call in every for problem in unknown(call, tree)] == []


@GCLOUD
@pytest.mark.slow
def test_gcloud_understands_every_line(every: list[Argv], tmp_path: Path) -> None:
    """gcloud must accept a line of each form that setup.sh uses. Each line gets an invalid flag, so that it changes
    nothing. gcloud must report only this flag as an error."""
    lines = {form(call): call for call in every}
    assert len(lines) > 40
    environment = os.environ | {"CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}

    def complaint(call: Argv) -> str:
        file = tmp_path / "flags.json"
        if flags := [word.partition("=")[2] for word in call if word.startswith("--flags-file=")]:
            file.write_text(flags[0])
        written = [f"--flags-file={file}" if word.startswith("--flags-file=") else word for word in call]
        done = subprocess.run(
            ["gcloud", *written, "--no-such-flag"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120 * PATIENCE,
        )
        return done.stderr.splitlines()[0].strip()

    with ThreadPoolExecutor(2) as workers:
        complaints = dict(zip(lines, workers.map(complaint, lines.values()), strict=True))
    wrong = {
        line: words
        for line, words in complaints.items()
        if not words.endswith("unrecognized arguments: --no-such-flag")
    }
    assert wrong == {}


@GCLOUD
@pytest.mark.slow
def test_gcloud_carries_out_on_the_simulator_what_the_page_says(every: list[Argv], tmp_path: Path) -> None:
    """Run command lines of setup.sh on the simulator. Of the objects that they name, only one group exists, so every
    other line must fail with "was not found"."""
    lines = {(command(call), "hf-any" in call): call for call in every if command(call) in ON_SIMULATOR}
    spec = advised(project="my-grid-project", zone="us-central1-a", name="hf-a")
    elsewhere = advised(project="my-grid-project", region="us-central1", name="other")
    with Simulator(migs=[spec, elsewhere]) as simulator:
        gcloud = Gcloud(simulator, spec, tmp_path / "config")
        done = {which: gcloud.run(shlex.join(call[1:])) for which, call in lines.items()}

    assert {one for one, _ in done} == ON_SIMULATOR
    there = done.pop(("compute instance-groups managed describe", False))
    assert (there.returncode, there.stderr) == (0, "")
    assert [(one.returncode, "was not found" in one.stderr) for one in done.values()] == [(1, True)] * 3


def test_the_page_names_every_command_and_how_far_it_was_tried(every: list[Argv]) -> None:
    section = (ROOT / "docs" / "deploy-google.md").read_text().partition("\n## What has tried setup.sh\n")[2]
    rows = re.findall(r"(?m)^\| `(.+)` \| (.*?) ?\| (.*?) ?\|$", section.partition("\n## ")[0])
    tried = [{f"{row[0]} {verb}" for row in rows for verb in row[column].split(", ") if verb} for column in (1, 2)]

    assert tried == [ON_SIMULATOR, {command(call) for call in every} - ON_SIMULATOR]


def command(call: Argv) -> str:
    """Return the command of a line, such as "compute networks create", without the resource and the options."""
    return " ".join((*named(call)[:-1], call[len(named(call)) - 1]))


def form(call: Argv) -> str:
    """Return the command of a line, and the names of its options."""
    options = sorted(word.partition("=")[0] for word in call if word.startswith("--"))
    return " ".join((command(call), *options))


def gcloud_table() -> Mapping[str, Any]:
    """Return all commands and flags of the installed gcloud, from the file by which gcloud completes words."""
    program = Path(shutil.which("gcloud") or "").resolve()
    file = program.parents[1] / "data" / "cli" / "gcloud_completions.py"
    spec = importlib.util.spec_from_file_location("gcloud_completions", file)
    assert spec is not None
    assert spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    tree: Mapping[str, Any] = table.STATIC_COMPLETION_CLI_TREE
    return tree


def unknown(call: Argv, tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of a line that gcloud does not have: a command, an option, or a value of an option."""
    node = tree
    for word in call:
        if word in node["commands"]:
            node = node["commands"][word]
    if node["commands"]:
        yield f"{call}: no command"
    known = {**tree["flags"], **node["flags"]}
    for option in (word for word in call if word.startswith("--")):
        name, _, value = option.partition("=")
        if name not in known and known.get(name.replace("--no-", "--", 1)) != "bool":
            yield f"{call}: no option {name}"
        elif isinstance(allowed := known.get(name), list) and value.lower() not in map(str.lower, allowed):
            yield f"{call}: {name} is one of {allowed}"


# --- it makes what Terraform makes ------------------------------------------------------------------------------------


SAME = {
    "google_service_account": "iam service-accounts",
    "google_project_iam_custom_role": "iam roles",
    "google_artifact_registry_repository": "artifacts repositories",
    "google_compute_network": "compute networks",
    "google_compute_subnetwork": "compute networks subnets",
    "google_compute_firewall": "compute firewall-rules",
    "google_container_cluster": "container clusters",
    "google_container_node_pool": "container node-pools",
    "google_compute_instance_template": "compute instance-templates",
    "google_compute_instance_group_manager": "compute instance-groups managed",
    "google_compute_region_instance_group_manager": "compute instance-groups managed",
    "google_pubsub_topic": "pubsub topics",
    "google_logging_project_sink": "logging sinks",
    "google_pubsub_subscription": "pubsub subscriptions",
    "google_filestore_instance": "filestore instances",
    "google_secret_manager_secret": "secrets",
}
"""Names of the same resource in Terraform and in gcloud."""

BOUND = {
    "google_project_service": "services",
    "google_project_iam_member": "projects",
    "google_service_account_iam_member": "iam service-accounts",
    "google_pubsub_topic_iam_member": "pubsub topics",
    "google_secret_manager_secret_iam_member": "secrets",
    "google_pubsub_subscription_iam_member": "pubsub subscriptions",
}


def test_both_make_the_same_kinds_of_things(module: Module, made: list[Argv]) -> None:
    kinds = {type_ for type_, _ in module.resources if not type_.startswith("data.")}
    assert kinds == {*SAME, *BOUND}
    created = {" ".join(named(call)[:-1]) for call in made if "create" in call}
    assert created == set(SAME.values())


def test_both_switch_on_the_same_apis(module: Module, made: list[Argv]) -> None:
    (enabled,) = [call for call in made if call[:2] == ("services", "enable")]
    first = module.of("google_project_service")["projects"]["service"]
    theirs = {plain(first), *re.findall(r"[a-z]+\.googleapis\.com", module.locals["apis"])}
    assert {word for word in enabled if word.endswith(".googleapis.com")} == theirs
    page = (ROOT / "docs" / "deploy-google.md").read_text()
    (listed_apis,) = re.findall(r"(?m)^\| APIs: (.+?) \|", page)
    assert {f"{word}.googleapis.com" for word in re.findall(r"\b[a-z]{3,}\b", listed_apis)} >= theirs


def test_both_switch_on_image_streaming_with_its_api(module: Module, made: list[Argv]) -> None:
    """Both setup.sh and Terraform must switch on image streaming. Without it, a node has to pull a whole image before
    its first pod can start."""
    assert module.of("google_container_node_pool")["workers"]["node_config"][0]["gcfs_config"][0]["enabled"] is True
    pools = [call for call in made if call[:3] == ("container", "node-pools", "create")]
    assert all("--enable-image-streaming" in call for call in pools)
    assert len(pools) == 2
    (enabled,) = [call for call in made if call[:2] == ("services", "enable")]
    assert "containerfilesystem.googleapis.com" in enabled


def test_both_give_the_same_roles(module: Module, made: list[Argv]) -> None:
    given = {value(call, "role") for call in made if any(word.endswith("-binding") for word in call)}
    ours = {role for role in given if role.startswith("roles/")}
    assert ours == set(re.findall(r'"(roles/\w[\w.]+)"', re.sub(r'"\$\{path.*?"', "", module.text)))
    custom = {
        Path(value(call, "file")).relative_to(TERRAFORM) for call in made if call[:3] == ("iam", "roles", "create")
    }
    assert custom == {Path("roles/machines.yaml"), Path("roles/events.yaml")}
    assert {role.rpartition("/")[2] for role in given - ours} == {"hf_provisioner", "hf_provisioner_events"}


@pytest.mark.parametrize(
    ("options", "accounts"),
    [
        (["--cluster", "none"], []),
        ([], ["hf-nodes"]),
        (["--cluster", "none", "--group", "a:us-central1-a"], ["hf-machines"]),
        (["--group", "a:us-central1-a"], ["hf-nodes", "hf-machines"]),
    ],
    ids=["nothing", "nodes", "instances", "both"],
)
def test_google_s_agent_may_make_nodes_and_instances(google: Google, options: list[str], accounts: list[str]) -> None:
    """Expect that setup.sh grants the roles to Google's agent explicitly, because a policy of the organization may have
    removed the agent's default role."""
    calls = google.setup(*SOME, *options, "--apply")
    given = {
        (*call[:2], next(word for word in call if "binding" not in word and word not in call[:2]), value(call, "role"))
        for call in calls
        if "--member=serviceAccount:123456@cloudservices.gserviceaccount.com" in call
    }
    role = {("projects", "add-iam-policy-binding", "my-grid-project", "roles/compute.instanceAdmin.v1")}
    assert given == (role if accounts else set()) | {
        ("iam", "service-accounts", f"{name}@my-grid-project.iam.gserviceaccount.com", "roles/iam.serviceAccountUser")
        for name in accounts
    }


def test_both_use_the_same_filter_for_the_sink_and_its_subscription_never_expires(made: list[Argv]) -> None:
    (sink,) = [call for call in made if call[:3] == ("logging", "sinks", "create")]
    text = (TERRAFORM / "sink-filter.txt").read_text().strip()
    assert value(sink, "log-filter") == text.replace("${project}", "my-grid-project").replace("${name_prefix}", "hf")
    (line,) = [call for call in made if call[:3] == ("pubsub", "subscriptions", "create")]
    assert value(line, "expiration-period") == "never"


ALIKE = """\
compute_instance_group_manager this update_policy.type hf-a update-policy-type
compute_instance_group_manager this update_policy.minimal_action hf-a update-policy-minimal-action
compute_instance_group_manager this instance_lifecycle_policy.default_action_on_failure hf-a \
default-action-on-vm-failure
compute_instance_group_manager this list_managed_instances_results hf-a list-managed-instances-results
compute_region_instance_group_manager this update_policy.type hf-any update-policy-type
compute_region_instance_group_manager this instance_lifecycle_policy.default_action_on_failure hf-any \
default-action-on-vm-failure
compute_region_instance_group_manager this update_policy.instance_redistribution_type hf-any \
instance-redistribution-type
compute_region_instance_group_manager this distribution_policy_target_shape hf-any target-distribution-shape
pubsub_subscription events ack_deadline_seconds hf-events ack-deadline
container_node_pool workers autoscaling.location_policy workers location-policy
container_node_pool workers autoscaling.total_min_node_count workers total-min-nodes
container_node_pool system initial_node_count hf num-nodes
container_node_pool system autoscaling.total_min_node_count hf total-min-nodes
"""
"""Each line has an argument in Terraform, and the resource and option in gcloud that have to agree with it."""


@pytest.mark.parametrize("line", ALIKE.splitlines())
def test_both_set_it_alike(module: Module, made: list[Argv], line: str) -> None:
    type_, name, path, call, option = line.split()
    body: Any = module.of(f"google_{type_}")[name]
    for step in path.split("."):
        body = body[step][0] if isinstance(body[step], list) else body[step]
    group = SAME[f"google_{type_}"] if call != "hf" else "container clusters"
    (made_by,) = [one for one in made if "create" in one and " ".join(named(one)) == f"{group} {call}"]
    assert value(made_by, option).lower() == plain(body).lower().replace("_", "-")


def test_an_instance_that_is_lost_stays_lost(module: Module, made: list[Argv]) -> None:
    """A group must not restart or replace a lost instance. The restarted or new instance would be a machine without a
    request."""
    scheduling: Block = module.of("google_compute_instance_template")["this"]["scheduling"][0]
    assert scheduling["automatic_restart"] is False
    on_demand, spot = [call for call in made if call[:3] == ("compute", "instance-templates", "create")]
    assert "--no-restart-on-failure" in on_demand
    assert "--no-restart-on-failure" in spot
    for option, argument in (
        ("provisioning-model", "provisioning_model"),
        ("maintenance-policy", "on_host_maintenance"),
        ("instance-termination-action", "instance_termination_action"),
    ):
        assert f'"{value(spot, option)}"' in scheduling[argument]
    assert f'"{value(on_demand, "provisioning-model")}"' in scheduling["provisioning_model"]


def test_both_give_every_instance_the_same_attributes_and_those_that_are_asked_for(
    module: Module, made: list[Argv]
) -> None:
    written = module.of("google_compute_instance_template")["this"]["metadata"]
    always = [f"{name}={given}" for name, given in re.findall(r"([\w-]+)\s*=\s*\"(\w+)\"", written)]
    assert len(always) == 2
    files = [f"startup-script={SCRIPTS / 'startup.sh'}", f"hf-machine-lib={SCRIPTS / 'lib.sh'}"]
    templates = [call for call in made if call[:3] == ("compute", "instance-templates", "create")]
    assert len(templates) == 2
    for call in templates:
        assert value(call, "metadata").split(",") == [*always, "hf-ego-master=master1.bank.example"]
        assert value(call, "metadata-from-file").split(",") == files


def test_both_let_nodes_and_symphony_s_hosts_alone_mount_the_share(module: Module, made: list[Argv]) -> None:
    """Only nodes and Symphony's hosts may mount the share, because a client of the share can write as any user. Only
    Symphony's hosts may write as root. The instances of groups are in another range, which may not mount it."""
    (share,) = [call for call in made if call[:3] == ("filestore", "instances", "create")]
    exports = json.loads(value(share, "flags-file"))["--file-share"]["nfs-export-options"]
    ranges = {one["squash-mode"]: one["ip-ranges"] for one in exports}
    assert ranges == {"NO_ROOT_SQUASH": ["10.0.0.0/16"], "ROOT_SQUASH": ["10.60.0.0/20"]}
    (dynamic,) = module.of("google_filestore_instance")["state"]["file_shares"][0]["dynamic"]
    (content,) = next(iter(dynamic.values()))["content"]
    assert {plain(content["access_mode"])} == {one["access-mode"] for one in exports}
    assert set(re.findall(r"\b\w*ROOT_SQUASH\b", str(module.locals["share_exports"]))) == ranges.keys()
    assert "nodes_range" in module.locals["share_clients"]
    assert "machines" not in module.locals["share_clients"]


def test_both_mark_the_nodes_for_machines_alike(module: Module, made: list[Argv]) -> None:
    nodes: Block = module.of("google_container_node_pool")["workers"]["node_config"][0]
    key = plain(nodes["taint"][0]["key"])
    (spot,) = [call for call in made if named(call)[-1] == "workers-spot"]
    assert value(spot, "node-taints") == f"{key}=true:NoSchedule,cloud.google.com/gke-spot=true:NoSchedule"
    assert value(spot, "node-labels") == f"{key}=true"
    assert "--spot" in spot


def test_both_give_the_network_the_same_ranges(made: list[Argv]) -> None:
    text = (TERRAFORM / "variables.tf").read_text()
    ranges = dict(re.findall(r'(\w+)_range +=\s+optional\(string, "([\d./]+)"\)', text))
    subnet, machines = [call for call in made if call[:4] == ("compute", "networks", "subnets", "create")]
    assert value(machines, "range") == ranges["machines"]
    templates = [call for call in made if call[:3] == ("compute", "instance-templates", "create")]
    assert {value(call, "subnet") for call in templates} == {machines[4]} == {"hf-machines"}
    (rule,) = [call for call in made if call[:3] == ("compute", "firewall-rules", "create")]
    answered = [ranges[name] for name in ("nodes", "machines", "pods")]
    assert value(rule, "source-ranges").split(",") == [*answered, "10.0.0.0/16"]
    assert value(subnet, "range") == ranges["nodes"]
    assert value(subnet, "secondary-range") == f"pods={ranges['pods']},services={ranges['services']}"


def named(call: Argv) -> Argv:
    """Return the words before the verb, and the resource's name. Leave out the verb, the options, and the domain of an
    account."""
    verb = next(
        number
        for number, word in enumerate(call)
        if CHANGING.match(word) or word.endswith(("-binding", "enable", "describe", "update", "list"))
    )
    return (*call[:verb], call[verb + 1].partition("@")[0])


def value(call: Argv, option: str) -> str:
    """Return the value of an option in a call."""
    (found,) = [word.partition("=")[2] for word in call if word.startswith(f"--{option}=")]
    return found
