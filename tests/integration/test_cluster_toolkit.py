"""The modules and blueprints for Google's Cluster Toolkit. Terraform, the toolkit's rules and its program judge
them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from provisioner.commands.cli import run
from tests.support.checks.attributes import attributes_read
from tests.support.checks.terraform import Module, plain
from tests.support.clients.terraform import terraform, whole
from tests.support.clients.toolkit import (
    BLUEPRINTS,
    MODULES,
    PROVISIONER,
    TOOLKIT,
    copied,
    deployment,
    go_program,
    outputs,
    settings_of,
)
from tests.support.hosts import ROOT
from tests.support.machine import NAME, Machine
from tests.support.metadata_server import MetadataServer
from tests.support.waiting import PATIENCE, until

REAL = pytest.mark.skipif(shutil.which("terraform") is None, reason="needs terraform")
EACH = pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.name))
EACH_BLUEPRINT = pytest.mark.parametrize("blueprint", BLUEPRINTS, ids=lambda blueprint: str(blueprint.name))
OURS = sorted(path for path in TOOLKIT.rglob("*") if path.is_file() and not path.is_symlink())
PASSED = {"hostfactory-group": 3, "hostfactory-provisioner": 16}
"""The number of runs in the tests of each module."""
KNOWN = {
    "$(master_account.service_account_email)": "master@my-grid-project.iam.gserviceaccount.com",
    "$(network.nat_ips[0])": "203.0.113.9",
}
"""Outputs of other modules of a blueprint."""
USED = {
    "hostfactory-gce.yaml": {"service_account_email": KNOWN["$(master_account.service_account_email)"]},
    "hostfactory-gke.yaml": {"cluster_endpoint": "203.0.113.7", "cluster_ca_certificate": "b2YgdGhlIGNsdXN0ZXI="},
}
"""Settings that the module gets from the modules that it uses, by blueprint."""

# --- the toolkit's rules for a module ---------------------------------------------------------------------------------


@EACH
def test_the_provider_knows_every_argument_and_every_name_leads_somewhere(module: Path) -> None:
    assert Module(module).problems() == []


@EACH
def test_a_module_has_the_form_that_the_toolkit_asks_for(module: Path) -> None:
    """The toolkit's label-check.py requires labels that name the module and its kind, on every resource with labels."""
    text = (module / "main.tf").read_text()
    labels = f'labels = merge(var.labels, {{ ghpc_module = "{module.name}", ghpc_role = "{module.parent.name}" }})'
    assert text.count(labels) == 1
    assert text.count("var.labels") == 1
    services = yaml.safe_load((module / "metadata.yaml").read_text())["spec"]["requirements"]["services"]
    assert [name for name in services if not re.fullmatch(r"[a-z]+\.googleapis\.com", name)] == []
    assert {file.name for file in module.iterdir()} >= {"README.md", "outputs.tf", "variables.tf", "versions.tf"}


@EACH
def test_every_variable_and_output_says_what_it_is(module: Path) -> None:
    read = Module(module)
    assert [name for name, variable in read.variables.items() if not variable.described] == []
    assert [name for name, body in read.outputs.items() if not plain(body.get("description", ""))] == []


def test_every_file_has_the_licence_but_pages() -> None:
    missing = [
        str(path) for path in OURS if path.suffix != ".md" and "Apache License, Version 2.0" not in path.read_text()
    ]
    assert missing == []


def test_rights_and_scripts_are_the_files_that_other_ways_of_deploying_read() -> None:
    links = {path.name: path.resolve() for path in PROVISIONER.rglob("*") if path.is_symlink()}
    deploy = ROOT / "deploy"
    assert links == {
        "settings": deploy / "terraform" / "modules" / "settings",
        "roles": deploy / "terraform" / "roles",
        "sink-filter.txt": deploy / "terraform" / "sink-filter.txt",
        "rbac.yaml": deploy / "kustomize" / "base" / "rbac.yaml",
        **{name: deploy / "machine" / name for name in ("lib.sh", "shutdown.sh", "startup.sh")},
    }
    assert all(path.exists() for path in links.values())


@EACH
def test_the_tables_of_the_page_name_every_input_and_output(module: Path) -> None:
    page, read = (module / "README.md").read_text(), Module(module)
    assert set(re.findall(r'<a name="input_(\w+)">', page)) == set(read.variables)
    assert set(re.findall(r'<a name="output_(\w+)">', page)) == set(read.outputs)


@EACH
@pytest.mark.slow
def test_terraform_docs_would_change_nothing(module: Path, tmp_path: Path) -> None:
    page = tmp_path / "module" / "README.md"
    shutil.copytree(module, page.parent, ignore=shutil.ignore_patterns(".terraform*"))
    marks = ("<!-- BEGINNING OF PRE-COMMIT-TERRAFORM DOCS HOOK -->", "<!-- END OF PRE-COMMIT-TERRAFORM DOCS HOOK -->")
    template = "\n{{ .Content }}\n".join(marks)
    words = ["markdown", "--lockfile=false", "--output-mode=inject", "--output-file=README.md"]
    command = [str(go_program("terraform-docs")), *words, f"--output-template={template}", str(page.parent)]
    subprocess.run(command, check=True, capture_output=True)
    assert page.read_text() == (module / "README.md").read_text()


@EACH
@pytest.mark.slow
def test_tflint_finds_no_fault(module: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.hcl"
    rules.write_text('plugin "terraform" {\n  enabled = true\n  preset  = "all"\n}\n')
    command = [str(go_program("tflint")), f"--config={rules}", f"--chdir={module}", "--no-color"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# --- Terraform --------------------------------------------------------------------------------------------------------


@REAL
def test_terraform_would_format_nothing() -> None:
    done = terraform("fmt", "-check", "-recursive", "-no-color", directory=TOOLKIT)
    assert (done.returncode, done.stdout) == (0, "")


@REAL
@EACH
@pytest.mark.slow
def test_terraform_accepts_a_module_and_its_tests_pass(module: Path, tmp_path: Path) -> None:
    copy, settings = whole(tmp_path, module)
    (copy / "tests").mkdir()
    shutil.copy(TOOLKIT / "tests" / f"{module.name}.tftest.hcl", copy / "tests")
    done = terraform("validate", "-no-color", directory=copy, settings=settings)
    assert done.returncode == 0, done.stderr
    done = terraform("test", "-no-color", directory=copy, settings=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PASSED[module.name]} passed, 0 failed" in done.stdout


def test_a_group_does_nothing_by_itself() -> None:
    """The group has no target size, so that a deployment does not resize a running grid. Its policies must equal those
    of the other Terraform module."""
    groups = (
        Module(MODULES[0]).of("google_compute_instance_group_manager"),
        Module(ROOT / "deploy" / "terraform").of("google_compute_instance_group_manager"),
    )
    ours, theirs = (group["this"] for group in groups)
    for block in ("update_policy", "instance_lifecycle_policy", "lifecycle"):
        assert ours[block] == theirs[block]
    assert "target_size" not in ours


def test_the_roles_are_bound_where_they_are_needed_and_nowhere_else() -> None:
    resources = Module(PROVISIONER).resources
    bound = {(type_, name): plain(body["role"]) for (type_, name), body in resources.items() if "_iam_member" in type_}
    assert bound == {
        ("google_project_iam_member", "this"): "${google_project_iam_custom_role.this[each.key].id}",
        ("google_pubsub_subscription_iam_member", "loop"): '${google_project_iam_custom_role.this["events"].id}',
        ("google_pubsub_topic_iam_member", "sink"): "roles/pubsub.publisher",
    }


# --- blueprints -------------------------------------------------------------------------------------------------------


@EACH_BLUEPRINT
def test_a_blueprint_gives_our_modules_what_they_take(blueprint: Path) -> None:
    for module in MODULES:
        if f"/{module.name}\n" in blueprint.read_text():
            given = settings_of(blueprint, module.name, dict.fromkeys(expressions(blueprint), "known"))
            assert set(given) - set(Module(module).variables) == set()


@EACH_BLUEPRINT
def test_machines_join_the_master_by_the_name_that_the_toolkit_gives_it(blueprint: Path) -> None:
    """The toolkit's module vm-instance builds a name from the deployment's name, ``name_prefix`` and a number."""
    master = settings_of(blueprint, "vm-instance", dict.fromkeys(expressions(blueprint), "known"))
    assert master["add_deployment_name_before_prefix"] is True
    given = variables(blueprint)
    assert given["ego_master"]["name"] == f"{given['deployment_name']}-{master['name_prefix']}-0"
    scopes = {scope.rpartition("/")[2] for scope in master["service_account_scopes"]}
    assert scopes == {"cloud-platform", "userinfo.email"}, "else a cluster knows the account by a number"


@REAL
@EACH_BLUEPRINT
@pytest.mark.slow
def test_runners_and_machines_read_the_module_s_outputs_of_a_blueprint(
    blueprint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = outputs(PROVISIONER, variables(blueprint), tmp_path / "made")
    every = [made[name] for name in ("packer_runners", "master_runners", "machine_runners")]
    for runners in every:
        fit_for_startup_script(runners)
    (settings,) = (runner["content"] for runner in made["master_runners"] if runner["destination"].endswith(".yml"))
    place = tmp_path / "settings"
    place.mkdir()
    for runner in made["master_runners"]:
        if runner["type"] == "data":
            (place / Path(runner["destination"]).name).write_text(runner["content"])
    assert yaml.safe_load(settings)["requestors"]["symAinst"] == {"mode": "POLL", "enabled": True}
    assert run(["render-hf", str(place / "settings.yml"), "--out", str(tmp_path / "hf")]) == 0, capsys.readouterr()
    instance = tmp_path / "hf" / "conf" / "providers" / variables(blueprint)["instance"]
    capsys.readouterr()
    assert run(["check", str(instance / "provisioner.yaml"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
    for manifest in made["apply_manifests"]:
        for document in yaml.safe_load_all(manifest["content"]):
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    machine = ROOT / "deploy" / "machine"
    read = attributes_read(machine / "startup.sh", machine / "shutdown.sh") | {"shutdown-script"}
    assert set(made["machine_metadata"]) <= read
    assert made["machine_metadata"]["hf-ego-master"] == variables(blueprint)["ego_master"]["name"]


@REAL
@pytest.mark.slow
def test_an_instance_joins_and_leaves_by_what_the_module_puts_out(machine: Machine, tmp_path: Path) -> None:
    made = outputs(PROVISIONER, variables(BLUEPRINTS[0]), tmp_path / "made")
    library, startup = made["machine_runners"]
    assert startup["args"] == library["destination"]
    paths = [tmp_path / Path(runner["destination"]).name for runner in (library, startup)]
    for path, runner in zip(paths, (library, startup), strict=True):
        path.write_text(runner["content"])
    values = {f"instance/attributes/{name}": value for name, value in made["machine_metadata"].items()}
    instance_values = {
        "instance/name": NAME,
        "instance/network-interfaces/0/ip": "10.9.8.7",
        "instance/preempted": "FALSE",
    }
    with MetadataServer(values | instance_values) as server:
        machine.environment["GCE_METADATA_HOST"] = server.host
        machine.start_line(f"exec bash {paths[1]} {paths[0]}")
        until(machine.ready.exists, 30, what="the machine is ready")
        assert "egoconfig join symphony-gce-master-0 -f" in machine.calls
        leaves = machine.start_line(made["machine_metadata"]["shutdown-script"])
        assert leaves.wait(timeout=30 * PATIENCE) == 0
    assert "egosh ego shutdown -f" in machine.calls


@REAL
@pytest.mark.slow
def test_a_pod_joins_by_the_spec_that_the_module_makes(machine: Machine, tmp_path: Path) -> None:
    made = outputs(PROVISIONER, variables(BLUEPRINTS[1]), tmp_path / "made")
    (spec,) = (runner["content"] for runner in made["master_runners"] if "pod-spec" in runner["destination"])
    assert machine.is_ready_as(yaml.safe_load(spec)["spec"])
    assert "egoconfig join symphony-gke-master-0 -f" in machine.calls
    assert "10.0.0.10 symphony-gke-master-0" in machine.hosts.read_text()


@EACH_BLUEPRINT
def test_gcluster_makes_a_deployment_of_a_blueprint(blueprint: Path, tmp_path: Path) -> None:
    made = deployment(copied(tmp_path) / blueprint.relative_to(TOOLKIT.parent), tmp_path / "out")
    assert {group.name for group in made.iterdir() if group.is_dir()} >= {"primary", "packer", "symphony"}
    (module,) = made.glob("primary/modules/hostfactory-provisioner-*")
    taken = {str(path.relative_to(module)) for path in module.rglob("*") if path.is_file()}
    assert taken >= {"files/roles/machines.yaml", "files/rbac.yaml", "files/startup.sh", "settings/main.tf"}
    master = (made / "symphony" / "main.tf").read_text()
    assert (
        "concat(var.symphony_configuration_runners, var.master_runners_provisioner, var.symphony_start_runners)"
        in master
    )


@REAL
def test_gcluster_makes_a_deployment_of_the_whole_grid_s_blueprint_and_terraform_takes_it(tmp_path: Path) -> None:
    """The files that gcluster copies into the deployment must be where the deployment reads them."""
    made = deployment(copied(tmp_path) / "blueprint" / "hostfactory.yaml", tmp_path / "out")
    primary = made / "primary"
    for name in ("versions.tf", "providers.tf"):
        (primary / name).write_text(fit_for_stand_in((primary / name).read_text()))
    shutil.move(primary, tmp_path / "kept")
    copy, settings = whole(tmp_path / "run", tmp_path / "kept")
    shutil.copytree(made / ".ghpc", copy.parent / ".ghpc")
    done = terraform("validate", "-no-color", directory=copy, settings=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "startup.sh_" in (copy / "main.tf").read_text()


def fit_for_stand_in(text: str) -> str:
    """Change a file of the toolkit so that the tests' Terraform accepts it. Remove google-beta, because the blueprint
    does not use it."""
    text = re.sub(r'(?ms)^( *)(?:provider "google-beta"|google-beta =) \{.*?^\1\}\n', "", text)
    return re.sub(r"required_version = .*", "", text)


def expressions(blueprint: Path) -> set[str]:
    """Return all expressions of a blueprint, except references to the blueprint's own variables."""
    return set(re.findall(r"\$\((?!vars\.)(?:[^()]|\([^()]*\))*\)", blueprint.read_text()))


def variables(blueprint: Path) -> dict[str, Any]:
    """Return the variables of the provisioner's module to which the blueprint gives a value, with these values."""
    own = yaml.safe_load(blueprint.read_text())["vars"]
    given = {**own, **settings_of(blueprint, PROVISIONER.name, KNOWN), **USED[blueprint.name], "labels": {}}
    return {name: value for name, value in given.items() if name in Module(PROVISIONER).variables}


def fit_for_startup_script(runners: list[dict[str, str]]) -> None:
    """Check that the toolkit's module startup-script would accept the runners and could pass their content to its
    shell."""
    names = [Path(runner["destination"]).name for runner in runners]
    assert len(set(names)) == len(names), "each is an object of this name in one bucket"
    for runner in runners:
        assert runner["type"] in ("data", "shell")
        assert runner["content"]
        assert not re.search(r"[\"$`\\']", runner.get("args", "")), "it stands in double quotes"
        assert Path(runner["destination"]).parent in (Path(), Path("/opt/hostfactory-settings")), (
            "mkdir makes one level"
        )
