"""The Terraform module: its calls to the Google provider, HostFactory's files that it makes, and the resources that it
leaves when it is destroyed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.backends.pubsub_events import METHODS
from provisioner.commands.cli import run
from tests.support.checks.attributes import OPTIONAL, attributes_read
from tests.support.checks.rights import ROLES
from tests.support.checks.terraform import Block, Module, overlay_values, plain
from tests.support.clients.terraform import (
    ENDPOINT,
    EXAMPLE,
    RENDERED,
    SETTINGS,
    TERRAFORM,
    copied,
    rendered,
    terraform,
    whole,
)

ROOT = Path(__file__).parents[2]
REAL = pytest.mark.skipif(shutil.which("terraform") is None, reason="needs terraform")
LABELLED = frozenset(
    {
        "google_artifact_registry_repository",
        "google_compute_instance_template",
        "google_pubsub_topic",
        "google_pubsub_subscription",
        "google_secret_manager_secret",
    }
)
REFUSING = {"google_container_cluster", "google_filestore_instance", "google_secret_manager_secret"}
"""Resources with content, which can be destroyed only if ``deletion_protection`` is false."""


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(TERRAFORM)


# --- what the provider takes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", [TERRAFORM, SETTINGS], ids=["root", "settings"])
def test_the_provider_knows_every_argument_and_every_name_leads_somewhere(directory: Path) -> None:
    assert Module(directory).problems() == []


def test_every_variable_and_output_says_what_it_is(module: Module) -> None:
    for each in (module, Module(SETTINGS)):
        assert [name for name, variable in each.variables.items() if not variable.described] == []
        assert [name for name, body in each.outputs.items() if not plain(body.get("description", ""))] == []


# --- what is made -----------------------------------------------------------------------------------------------------


GROUPS = ("google_compute_instance_group_manager", "google_compute_region_instance_group_manager")


@pytest.mark.parametrize("kind", GROUPS)
def test_a_group_does_nothing_by_itself(module: Module, kind: str) -> None:
    """A group has no autoscaler, no repair and no automatic update; only the loop sets its size."""
    group = module.of(kind)["this"]
    assert plain(inner(group, "update_policy")["type"]) == "OPPORTUNISTIC"
    assert plain(inner(group, "instance_lifecycle_policy")["default_action_on_failure"]) == "DO_NOTHING"
    assert "target_size" not in group
    assert inner(group, "lifecycle")["ignore_changes"] == ["target_size"]
    assert not any("autoscaler" in type_ for type_, _ in module.resources)


def test_a_regional_group_moves_no_instance(module: Module) -> None:
    group = module.of(GROUPS[1])["this"]
    assert plain(inner(group, "update_policy")["instance_redistribution_type"]) == "NONE"


def test_every_instance_has_labels_and_no_address_of_the_internet(module: Module) -> None:
    template = module.of("google_compute_instance_template")["this"]
    assert "var.labels" in template["labels"]
    assert set(inner(template, "network_interface")) - {"__is_block__"} == {"subnetwork"}


def test_an_instance_gets_what_its_scripts_read_and_the_page_says_so(module: Module) -> None:
    read = attributes_read(*(ROOT / "deploy" / "machine" / name for name in ("startup.sh", "shutdown.sh")))
    page = (ROOT / "docs" / "deploy-machine.md").read_text()
    assert {"hf-ego-master", "hf-machine-lib"} | OPTIONAL == read == {name for name in read if name in page}
    assert "each.value.metadata" in module.of("google_compute_instance_template")["this"]["metadata"]


def test_the_roles_are_those_that_are_compared_with_the_calls(module: Module) -> None:
    for name in ("machines", "events", "cluster"):
        assert plain(module.locals[f"{name}_role"]) == f'${{yamldecode(file("${{path.module}}/roles/{name}.yaml"))}}'
        role = module.of("google_project_iam_custom_role")[name]
        assert role["permissions"] == f"${{local.{name}_role.includedPermissions}}"
        assert (ROLES / f"{name}.yaml").is_file()


def test_the_loop_has_no_other_role(module: Module) -> None:
    """Expect that the loop's account has only our three roles, a right on each named secret, and the binding for its
    pod."""
    bound = {
        (type_.removeprefix("google_"), name): plain(body["role"])
        for (type_, name), body in module.resources.items()
        if type_.endswith("_iam_member")
        if "google_service_account.loop" in body["member"]
    }
    assert bound == {
        ("project_iam_member", "cluster"): "${google_project_iam_custom_role.cluster[0].id}",
        ("project_iam_member", "machines"): "${google_project_iam_custom_role.machines[0].id}",
        ("pubsub_subscription_iam_member", "loop"): "${google_project_iam_custom_role.events[0].id}",
        ("secret_manager_secret_iam_member", "loop"): "roles/secretmanager.secretAccessor",
    }
    identity = module.of("google_service_account_iam_member")["workload_identity"]
    assert plain(identity["role"]) == "roles/iam.workloadIdentityUser"


def test_the_subscription_never_expires_and_the_sink_may_write(module: Module) -> None:
    subscription = module.of("google_pubsub_subscription")["events"]
    assert inner(subscription, "expiration_policy")["ttl"] == '""'
    writer = module.of("google_pubsub_topic_iam_member")["sink"]
    assert plain(writer["role"]) == "roles/pubsub.publisher"
    assert writer["member"] == "${google_logging_project_sink.events[0].writer_identity}"
    assert "sink-filter.txt" in module.of("google_logging_project_sink")["events"]["filter"]


def test_the_sink_s_filter_is_the_one_that_the_example_of_settings_shows() -> None:
    ours = (TERRAFORM / "sink-filter.txt").read_text().replace("${project}", "demo-project")
    shown = (ROOT / "config" / "demoinst" / "provisioner.yaml").read_text()
    words = " ".join(line.strip("# ") for line in shown.splitlines())
    assert " ".join(ours.replace("${name_prefix}", "hf").split()) in words


def test_the_sink_lets_through_every_event_that_the_loop_understands() -> None:
    text = (TERRAFORM / "sink-filter.txt").read_text()
    pattern = re.search(r'methodName=~"(.+)"', text)
    assert pattern
    missing = [name for name in METHODS if not re.search(pattern[1], f"v1.compute.{name}")]
    assert missing == []


def test_destroy_leaves_nothing_unless_protection_is_set(module: Module) -> None:
    """Destroying must leave no resource, unless the operator sets ``deletion_protection``, whose default is false. Only
    the APIs must stay enabled, because other users of the project may need them."""
    refusing = {
        (type_, name): body[argument]
        for (type_, name), body in module.resources.items()
        for argument in body
        if argument.startswith("deletion_protection")
    }
    assert {type_ for type_, _ in refusing} == REFUSING
    page = " ".join((ROOT / "docs" / "deploy-google.md").read_text().split())
    assert "`deletion_protection = true`, it protects the cluster, the secrets, and a share" in page
    assert all("var.deletion_protection" in value for value in refusing.values())
    assert module.default("deletion_protection") == "False"
    assert all(api["disable_on_destroy"] is False for api in module.of("google_project_service").values())
    assert "prevent_destroy" not in module.text


def test_the_values_that_it_names_are_values_of_the_overlay(module: Module) -> None:
    values = yaml.safe_load((ROOT / "deploy/kustomize/overlays/gke-workload-identity/values.yaml").read_text())["data"]
    named = overlay_values(module)
    assert {"image", "instance", "googleServiceAccount", "nodesServiceAccount", "nfsServer", "nfsPath"} <= named
    assert named <= values.keys()
    registry = (
        plain(module.locals["registry"]).replace("${var.region}", "REGION").replace("${var.project_id}", "PROJECT")
    )
    assert values["image"].startswith(registry.replace("${var.name_prefix}", "hf") + "/provisioner:")


def test_all_that_can_have_labels_has_them(module: Module) -> None:
    for (type_, name), body in module.resources.items():
        if type_ in LABELLED:
            assert "var.labels" in str(body["labels"]), name


# --- HostFactory's files ----------------------------------------------------------------------------------------------


def test_the_rendered_example_passes_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(RENDERED / "provisioner.yaml"), "-o", "json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["warnings"] == []


def test_the_pods_of_the_example_choose_the_nodes_that_the_module_makes(module: Module) -> None:
    for name in ("pods", "pods-spot"):
        spec = yaml.safe_load((RENDERED / "pod-specs" / f"{name}.yaml").read_text())["spec"]
        nodes = inner(module.of("google_container_node_pool")["workers"], "node_config")
        assert set(spec["nodeSelector"]) - {"cloud.google.com/gke-spot"} == {plain(key) for key in nodes["labels"]}
        taints = {plain(taint["key"]) for taint in nodes["taint"]}
        assert taints <= {toleration["key"] for toleration in spec["tolerations"]}
        assert ("cloud.google.com/gke-spot" in spec["nodeSelector"]) is (name == "pods-spot")


@REAL
def test_terraform_renders_the_example_so(tmp_path: Path) -> None:
    """Terraform must render exactly the example that is in the repository. If the example has to change, ``python -m
    tests.support.clients.terraform`` writes it again."""
    files = {str(file.relative_to(RENDERED)): file.read_text() for file in RENDERED.rglob("*") if file.is_file()}
    assert rendered(EXAMPLE, tmp_path, endpoint=ENDPOINT, authority=files["cluster-ca.crt"]) == files


@REAL
@pytest.mark.slow
def test_the_examples_make_what_they_say(tmp_path: Path) -> None:
    copy, settings = whole(tmp_path)
    (copy.parent / "machine").symlink_to(TERRAFORM.parent / "machine")
    files = [f"-var-file=examples/{name}.tfvars" for name in ("grid", "loop-in-pod")]
    words = ("test", "-no-color", "-test-directory=examples", *files)
    done = terraform(*words, directory=copy, settings=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 0 failed" in done.stdout


@REAL
def test_terraform_accepts_the_settings_module_and_its_own_tests_pass(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    assert terraform("validate", "-no-color", directory=copy).returncode == 0
    done = terraform("test", "-no-color", directory=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18 passed, 0 failed" in done.stdout


@REAL
@pytest.mark.slow
def test_terraform_accepts_the_whole_module_and_its_own_tests_pass(tmp_path: Path) -> None:
    """Terraform uses our plug-in, which has the provider's schema. The module's own tests plan and make every kind of
    grid with mock providers."""
    copy, settings = whole(tmp_path)
    done = terraform("validate", "-no-color", directory=copy, settings=settings)
    assert done.returncode == 0, done.stderr
    done = terraform("test", "-no-color", directory=copy, settings=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "26 passed, 0 failed" in done.stdout


@REAL
def test_terraform_would_format_nothing() -> None:
    done = terraform("fmt", "-check", "-recursive", "-no-color", directory=TERRAFORM)
    assert (done.returncode, done.stdout) == (0, "")


def inner(body: Block, name: str) -> Any:
    """Return the only block of this name."""
    (block,) = body[name]
    return block
