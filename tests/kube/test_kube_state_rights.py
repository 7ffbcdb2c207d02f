"""The Roles of the state on a real server: loop and scripts do all their work with them, and each verb is used."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from provisioner.hostfactory import Answer
from provisioner.hostfactory.provider_config import Digests
from provisioner.model import Hold, HoldKind, Memory, RequestRecord, ReturnRecord
from provisioner.state.errors import StateDenied, StateError
from provisioner.state.holds import with_hold
from provisioner.state.kube.api_login import Access
from provisioner.state.kube.connection import ApiServer, Response, Watch
from provisioner.state.kube.objects import NOTES, REQUESTS, RETURNS, STATES, collection, item, leases, pack
from provisioner.state.kube.script_state import FEW, KubeEntries, KubeScriptState
from provisioner.state.kube.state import KubeState
from tests.kube.space import TOKEN_SECONDS, Space
from tests.support.checks.rights import kube_call
from tests.support.manifests import KUSTOMIZE, ROOT
from tests.support.waiting import until

pytestmark = pytest.mark.kube

COMPONENT = KUSTOMIZE / "components/kubernetes-state"
LOOP, SCRIPTS = "provisioner-state", "hostfactory-scripts"
ROLES: Mapping[str, dict[str, Any]] = {
    one["metadata"]["name"]: one
    for one in yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text())
    if one["kind"] == "Role"
}


class Recorded(ApiServer):
    """An API server that notes the right that each call needs."""

    def __init__(self, access: Access) -> None:
        super().__init__(lambda: access)
        self.used: set[str] = set()

    def _note(self, method: str, path: str) -> None:
        target = urlsplit(path)
        self.used.add(kube_call(method, target.path, dict(parse_qsl(target.query))))

    def call(self, method: str, path: str, *arguments: Any, **options: Any) -> Response:
        self._note(method, path)
        return super().call(method, path, *arguments, **options)

    def watch(self, path: str, seconds: float) -> Watch:
        self._note("GET", path)
        return super().watch(path, seconds)


def granted(role: str) -> set[str]:
    return {
        f"{group}/{resource} {verb}" if group else f"{resource} {verb}"
        for rule in ROLES[role]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rules(rights: Collection[str]) -> list[dict[str, list[str]]]:
    """Return the rules of a Role that has these rights."""
    found = [re.fullmatch(r"([^/]+)/(\S+) (\w+)", right) for right in sorted(rights)]
    return [{"apiGroups": [one[1]], "resources": [one[2]], "verbs": [one[3]]} for one in found if one]


def bind(space: Space, role: str, lacks: str = "") -> Recorded:
    """Make an account that has the rights of ``role`` in this namespace, and no others. Return a client for this
    account.

    ``lacks``: a right to leave out.
    """
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.name}"
    accounts = f"/api/v1/namespaces/{space.name}/serviceaccounts"
    space.admin.create(accounts, {"metadata": {"name": role}})
    space.admin.create(f"{rbac}/roles", {"metadata": {"name": role}, "rules": rules(granted(role) - {lacks})})
    subject = {"kind": "ServiceAccount", "name": role, "namespace": space.name}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role}
    space.admin.create(
        f"{rbac}/rolebindings", {"metadata": {"name": role}, "roleRef": reference, "subjects": [subject]}
    )
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    response = space.admin.create(f"{accounts}/{role}/token", {**asked, "spec": {"expirationSeconds": TOKEN_SECONDS}})
    access = Access(space.admin.server, space.name, token=response["status"]["token"], authority=str(space.admin.ca))
    api = Recorded(access)

    known = item(space.name, STATES, "demo") if "leases get" in lacks else f"{leases(space.name)}/demo.loop"

    def is_in_force() -> bool:
        try:
            api.call("GET", known)
        except StateDenied:
            return False
        return True

    until(is_in_force, 30, what="the role is in force")
    api.used.clear()
    return api


def life_of_scripts(space: Space, api: Recorded, directory: Path) -> None:
    """Make each call of the scripts. Record requests and returns, poll answers, and write each part of the
    HostFactoryNotes."""
    state = KubeScriptState(api, "demo", str(directory))
    ids = [state.record_request("demo", "GkePod", 1, created_wall=1e9, rc_account="").id for _ in range(FEW + 1)]
    back = state.record_return("demo", ["hf-0a1b2c3d4e-000000"], created_wall=1e9).id
    answer = {"phase": "Ended", "epoch": 1, "generation": 1, "answer": pack({"text": "{}", "ended": True})}
    space.admin.patch(item(space.name, REQUESTS, ids[0], "status"), {"status": answer})
    for asked in ([ids[0], back], ids, [ids[0]]):
        assert state.poll(asked).answers[ids[0]] == Answer("{}", True)
    space.admin.create(
        collection(space.name, STATES),
        {"apiVersion": "provisioner.hostfactory.dev/v1alpha1", "kind": "ProvisionerState", "metadata": {"name": "demo"}}
        | {"spec": {"provisioner": "demo"}},
    )
    lost = {"epoch": 1, "generation": 1, "lost": pack({"hf-0a1b2c3d4e-000000": [0, "unknown"]})}
    space.admin.patch(item(space.name, STATES, "demo", "status"), {"status": lost})
    assert state.lost(["hf-0a1b2c3d4e-000000"]) == {}
    assert state.available() == {}
    state.note_read(Digests("0", "1"))
    assert state.note_shown({"GkePod": 5})[0] == {"GkePod": 5}
    state.note_hosts({"hf-0a1b2c3d4e-000000": None})
    state.note_refusal("requestMachines", "no template")
    assert space.admin.get(item(space.name, NOTES, "demo"))["spec"]["refused"]


class Administrator(ApiServer):
    """A client of the space's server, with an account that may do everything."""

    def __init__(self, space: Space) -> None:
        token = space.admin.headers["Authorization"].removeprefix("Bearer ")
        super().__init__(lambda: Access(space.admin.server, space.name, token=token, authority=str(space.admin.ca)))


def memory_of(ids: list[str], back: str, epoch: int, doubles: Mapping[str, float]) -> Memory:
    """Return a memory with records of requests and of a return.

    It is too large for one object if ``doubles`` has many entries.
    """
    records = {id_: RequestRecord(id_, "GkePod", 1, 0.0, 9.0) for id_ in ids}
    returns = {back: ReturnRecord(back, ("m2",), 0.0, 9.0)}
    return Memory("demo", epoch=epoch, requests=records, returns=returns, doubles=doubles)


def answer_of(status: str, id_: str, message: str = "") -> Answer:
    entry = {"requestId": id_, "status": status, "message": message, "machines": []}
    return Answer(json.dumps(entry), status != "running")


def life_of_a_loop(space: Space, api: Recorded, directory: Path) -> None:
    """Make the calls of a loop. It takes the Lease, writes a memory that fills several objects, publishes and settles
    answers, sets holds, recovers, and removes everything."""
    admin = Administrator(space)
    script = KubeScriptState(admin, "demo", str(directory))
    one, other = (script.record_request("demo", "GkePod", 1, created_wall=1e9, rc_account="").id for _ in range(2))
    back, lost = (script.record_return("demo", [name], created_wall=1e9).id for name in ("m1", "m2"))
    state = KubeState(api, "demo", str(directory), follows=True)
    try:
        state.wait_synced()
        assert state.loop_lock.acquire(0)
        epoch = state.loop_lock.raise_epoch(1)
        numbers = random.Random(0)
        large = {f"{numbers.randbytes(16).hex()}": numbers.random() for _ in range(40_000)}
        for doubles in (large, {}):
            state.memory.write(memory_of([one, other], lost, epoch, doubles))
        answers = {id_: answer_of("running", id_, "no room") for id_ in (one, other)}
        state.status.write({**answers, back: answer_of("running", back)}, {}, {"GkePod": 5})
        assert state.terminal_answers.settle_revised(one, answer_of("complete", one).text)
        state.terminal_answers.assume_reported(other)
        state.holds.change(lambda holds: with_hold(holds, Hold(HoldKind.PAUSE, "gke-main")))
        state.write_pool_status({"paused": ["gke-main"]})
        state.note_in_force(Digests("0", "1"))
        script.poll([one, other])
        until(lambda: other in state.polls(), 30, what="the loop has seen the poll")
        until(lambda: one in state.terminal_answers.answers(), 30, what="the loop has seen its own entry")
        whole = state.intent.read()
        for resource, id_ in ((REQUESTS, other), (RETURNS, lost)):
            space.admin.delete(item(space.name, resource, id_))
        until(lambda: not {other, lost} & {*state.intent.objects()}, 30, what="the loop has seen the loss")
        state.intent.restore(whole)
        with patch.object(state.intent, "objects", dict):  # as after a create whose response was lost
            state.intent.restore(whole)
        state.note_shown({"GkePod": 5})
        state.ask_release()
        until(state.release_asked, 30, what="the loop is asked")
        state.forget_release()
        state.beat()
        state.forget_polls([one])
        state.intent.remove([one, back])
        until(lambda: {*state.intent.objects()} == {other, lost}, 30, what="the request has left")
        state.loop_lock.release()
        written = space.admin.get(f"/apis/events.k8s.io/v1/namespaces/{space.name}/events")["items"]
        assert {one["reason"] for one in written} >= {"MachinesMissing"}
    finally:
        state.close()
    KubeEntries(admin, "demo").settle_reported(lost, "first")  # no watch shows it any more
    assert not state.terminal_answers.settle_revised(lost, "second")


@pytest.mark.usefixtures("state_kinds")
def test_the_loop_has_the_rights_that_it_uses(space: Space, tmp_path: Path) -> None:
    api = bind(space, LOOP)
    life_of_a_loop(space, api, tmp_path)

    assert api.used == granted(LOOP)


@pytest.mark.usefixtures("state_kinds")
def test_the_scripts_have_the_rights_that_they_use(space: Space, tmp_path: Path) -> None:
    api = bind(space, SCRIPTS)
    life_of_scripts(space, api, tmp_path)

    assert api.used == granted(SCRIPTS)


LIVES = {LOOP: life_of_a_loop, SCRIPTS: life_of_scripts}
EVENTS = "events.k8s.io/events create"
LIVES_AT_ONCE = 6


@pytest.mark.usefixtures("state_kinds")
@pytest.mark.parametrize("role", LIVES)
def test_a_life_without_one_of_the_rights_says_which_one_is_missing(
    role: str, space: Space, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def play(right: str) -> str:
        directory = tmp_path / re.sub(r"\W", "-", right)
        directory.mkdir()
        with Space(space.admin) as own:
            try:
                LIVES[role](own, bind(own, role, lacks=right), directory)
            except (StateError, AssertionError) as error:
                return f"{type(error).__name__}: {error}"
        return "nothing was missing"

    rights = sorted(granted(role))
    with ThreadPoolExecutor(LIVES_AT_ONCE) as threads:
        said = dict(zip(rights, threads.map(play, rights), strict=True))
    if EVENTS in said:  # they are no state, so the loop goes on without them, and logs why
        said[EVENTS] = next(f"StateDenied: {vars(one)['error']}" for one in caplog.records if "Event" in one.message)
    silent = {right: text for right, text in said.items() if not text.endswith(missing(right))}
    assert silent == {}
    assert {text.partition(":")[0] for text in said.values()} == {"StateDenied"}


def missing(right: str) -> str:
    """Return the end of the message by which our program reports that this right is missing."""
    resource, verb = right.partition("/")[2].split()
    return f"Bind this account to its Role in {COMPONENT.relative_to(ROOT)}, which has the verb {verb} on {resource}."
