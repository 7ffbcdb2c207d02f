"""The kinds of the state on a real API server. A write that breaks a law is refused, even if the administrator makes
it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import yaml

from provisioner.state.kube.objects import API_VERSION, KINDS, collection, item
from tests.kube.client import Document, Refused
from tests.kube.space import Space
from tests.support.manifests import KUSTOMIZE

pytestmark = pytest.mark.kube

DEFINITIONS: list[Document] = list(
    yaml.safe_load_all((KUSTOMIZE / "components/kubernetes-state/crds.yaml").read_text())
)
REQUEST, RETURN, ANSWER = "MachineRequest", "MachineReturn", "MachineAnswer"
STATE, PART, NOTE = "ProvisionerState", "StatePart", "HostFactoryNote"
RESOURCES = {kind: resource for resource, kind in KINDS.items()}
NAME = "0a1b2c3d4e"
NAMES = {RETURN: f"ret-{NAME}", ANSWER: f"{NAME}.0"}
"""Names of objects that have another name than ``NAME``."""
WRONG_NAMES = {
    REQUEST: ("test", "0a1b2c3d4e5", f"ret-{NAME}", "my.request", "a" * 253),
    RETURN: (NAME, "ret-1", f"ret-{NAME}.0"),
    ANSWER: (NAME, f"{NAME}.x", f"{NAME}.0.0", "1a1b2c3d4e.0"),
}
MOST_BYTES, NUMBER_BYTES, KEY_BYTES = 1_500_000, 20, 68
"""Most bytes of an object that etcd takes, of a number, and of a template's name as a key."""
POLL_BYTES = 32
"""Bytes of a poll: the id of a request, and a time."""

TEXT, OTHER = "eJyrVkpLzMkBAA+/A8k=", "eJyrVkorzc/+AAXcAk8="
"""Packed texts with + and /. With ``format: byte`` the server refuses them as soon as it evaluates a rule."""
SPECS: Mapping[str, Document] = {
    REQUEST: {"provisioner": "demo", "template": "GkePod", "count": 100, "account": "risk", "created": 1e9},
    RETURN: {"provisioner": "demo", "names": ["hf-0a1b2c3d4e-000000"], "created": 1e9},
    ANSWER: {"provisioner": "demo", "request": NAME, "kind": "Reported", "answer": TEXT},
    STATE: {"provisioner": "demo", "holds": [{"kind": "pause", "target": "gke-main"}]},
    PART: {"provisioner": "demo", "part": "log", "epoch": 3, "generation": 17, "data": TEXT},
    NOTE: {"provisioner": "demo", "shown": {"GkePod": 100}},
}
LED = {"epoch": 3, "generation": 17}
RUNS = {"phase": "Running", "answer": OTHER, **LED}
ENDED = {"phase": "Complete", "answer": TEXT, **LED}
BEGINS = {"phase": "Waiting", **LED}


class Break(NamedTuple):
    """A write that breaks a law and must be refused. ``part``: the part of the object to write. ``status``: the status
    that the object has before the write."""

    kind: str
    status: Document | None
    part: str
    write: Document
    words: str


def of_both(name: str, status: Document, write: Document, words: str) -> dict[str, Break]:
    """Return the same breach of a law for a request and for a return request."""
    return {f"{kind}: {name}": Break(kind, status, "/status", {"status": write}, words) for kind in (REQUEST, RETURN)}


SPEC, END, EPOCH = "the spec of a {} never changes", "a terminal answer never changes", "this epoch is over"
OLDER = "this generation is older"
OTHERS = "the object of a provisioner never becomes another's"
BREAKS: Mapping[str, Break] = {
    "the number of a request": Break(REQUEST, None, "", {"spec": {"count": 101}}, SPEC.format("request")),
    "the account of a request": Break(REQUEST, None, "", {"spec": {"account": None}}, SPEC.format("request")),
    "the names of a return": Break(RETURN, None, "", {"spec": {"names": ["hf-a-1"]}}, SPEC.format("return")),
    "a settled answer": Break(ANSWER, None, "", {"spec": {"answer": OTHER}}, "an answer that HostFactory has got"),
    "a reported answer without its text": Break(ANSWER, None, "", {"spec": {"answer": None}}, "has its text"),
    **of_both("another answer after the end", ENDED, {"answer": OTHER}, END),
    **of_both("no answer after the end", ENDED, {"answer": None}, END),
    **of_both("a phase before the end", ENDED, {"phase": "Running"}, END),
    **of_both("another end by a later loop", ENDED, {"phase": "CompleteWithError", "epoch": 4}, END),
    **of_both("an end without an answer", BEGINS, {"phase": "Complete"}, "has an answer"),
    **of_both("a claimed end without an answer", BEGINS, {"phase": "Ended"}, "has an answer"),
    **of_both("an older epoch", RUNS, {"epoch": 2, "answer": TEXT}, EPOCH),
    **of_both("an older generation", RUNS, {"generation": 16, "answer": TEXT}, OLDER),
    **of_both("no epoch", RUNS, {"epoch": None}, "Required value"),
    **of_both("an unknown phase", RUNS, {"phase": "Done"}, "Unsupported value"),
    "the status of a request": Break(REQUEST, ENDED, "/status", {"status": None}, "request is never taken away"),
    "the status of a return": Break(RETURN, ENDED, "/status", {"status": None}, "return is never taken away"),
    "the status of a provisioner": Break(STATE, LED, "/status", {"status": None}, "provisioner is never taken away"),
    "an older epoch of the state": Break(STATE, LED, "/status", {"status": {"epoch": 2}}, EPOCH),
    "an older generation of the state": Break(STATE, LED, "/status", {"status": {"generation": 16}}, OLDER),
    "an older epoch of a part": Break(PART, None, "", {"spec": {"epoch": 2, "generation": 18}}, EPOCH),
    "an older generation of a part": Break(PART, None, "", {"spec": {"epoch": 4, "generation": 16}}, OLDER),
    "no epoch of a part": Break(PART, None, "", {"spec": {"epoch": None}}, "Required value"),
    **{
        f"another provisioner of a {kind}": Break(kind, None, "", {"spec": {"provisioner": "other"}}, OTHERS)
        for kind in (STATE, PART, NOTE)
    },
    "hosts beside demand": Break(NOTE, None, "", {"spec": {"hosts": TEXT, "demand": TEXT}}, "have notes of their own"),
    "a hold of an unknown kind": Break(STATE, None, "", {"spec": {"holds": [{"kind": "pouse"}]}}, "Unsupported value"),
    "a reason without end": Break(REQUEST, RUNS, "/status", {"status": {"reason": "x" * 257}}, "may not be more than"),
    "a part that etcd may refuse": Break(PART, None, "", {"spec": {"data": "x" * 700_004}}, "may not be more than"),
}


def schemas() -> Iterator[tuple[str, Document]]:
    """Yield each kind and its schema."""
    for one in DEFINITIONS:
        yield one["spec"]["names"]["kind"], one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def rules() -> Iterator[tuple[str, str]]:
    """Yield each rule as its kind and its message."""
    for kind, schema in schemas():
        for part in (schema, *schema["properties"].values()):
            for rule in part.get("x-kubernetes-validations", ()):
                yield kind, rule["message"]


class Objects:
    """The objects of one namespace, as the administrator writes them."""

    def __init__(self, space: Space) -> None:
        self.admin, self._space = space.admin, space.name

    def path(self, kind: str, part: str = "", name: str = "") -> str:
        return item(self._space, RESOURCES[kind], name or NAMES.get(kind, NAME)) + part

    def make(self, kind: str, status: Document | None = None, name: str = "", **spec: Any) -> Document:
        """Create an object, then write its status."""
        name = name or NAMES.get(kind, NAME)
        made = self.admin.create(
            collection(self._space, RESOURCES[kind]),
            {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": {**SPECS[kind], **spec}},
        )
        return self.admin.patch(self.path(kind, "/status", name), {"status": status}) if status else made

    def table(self, kind: str, **query: object) -> tuple[list[str], list[list[Any]]]:
        """Return the columns that kubectl shows without ``-o wide``, and the rows."""
        admin = self.admin
        admin.headers["Accept"] = "application/json;as=Table;v=v1;g=meta.k8s.io"
        try:
            table = admin.get(collection(self._space, RESOURCES[kind]), **query)
        finally:
            del admin.headers["Accept"]
        shown = [number for number, column in enumerate(table["columnDefinitions"]) if not column["priority"]]
        rows = [[row["cells"][number] for number in shown] for row in table.get("rows") or ()]
        return [table["columnDefinitions"][number]["name"] for number in shown], rows


@pytest.fixture
def objects(space: Space, state_kinds: None) -> Objects:
    return Objects(space)


@pytest.mark.parametrize("wrong", BREAKS.values(), ids=BREAKS)
def test_the_server_refuses_what_would_break_a_law(objects: Objects, wrong: Break) -> None:
    objects.make(wrong.kind, wrong.status)
    before = objects.admin.get(objects.path(wrong.kind))

    with pytest.raises(Refused, match=wrong.words) as refused:
        objects.admin.patch(objects.path(wrong.kind, wrong.part), wrong.write)

    assert refused.value.status == 422
    assert objects.admin.get(objects.path(wrong.kind)) == before


@pytest.mark.parametrize(("kind", "message"), list(rules()))
def test_each_rule_is_broken_on_purpose(kind: str, message: str) -> None:
    words = [one.words for one in BREAKS.values() if one.kind == kind]
    assert [one for one in (*words, "the name of a") if one in message]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in WRONG_NAMES.items() for name in names])
def test_a_name_that_no_script_chooses_is_refused(objects: Objects, kind: str, name: str) -> None:
    """The server must refuse a request with a name that no script chooses. The loop would otherwise make machines whose
    names it does not recognize later, or could not read the object."""
    with pytest.raises(Refused, match="the name of a") as refused:
        objects.make(kind, None, name)
    assert refused.value.status == 422


@pytest.mark.parametrize("kind", [REQUEST, RETURN])
def test_a_request_goes_on_until_its_end_and_a_later_loop_may_write_the_same_end(objects: Objects, kind: str) -> None:
    objects.make(kind, BEGINS)
    for status in ({"phase": "Running", "answer": OTHER}, {"answer": TEXT}, ENDED, {"epoch": 4, "failed": 2}):
        objects.admin.patch(objects.path(kind, "/status"), {"status": status})

    written = objects.admin.get(objects.path(kind))["status"]
    assert written == ENDED | {"epoch": 4, "failed": 2}


def test_the_first_answer_is_settled_and_the_second_is_refused(objects: Objects) -> None:
    objects.make(ANSWER)

    with pytest.raises(Refused) as refused:
        objects.make(ANSWER, answer=OTHER)

    assert refused.value.status == 409
    assert objects.admin.get(objects.path(ANSWER))["spec"]["answer"] == TEXT


def test_a_repeated_request_is_refused_by_its_name(objects: Objects) -> None:
    objects.make(REQUEST)

    with pytest.raises(Refused) as refused:
        objects.make(REQUEST)

    assert refused.value.status == 409


def test_kubectl_shows_requests_and_returns_and_why_machines_are_missing(objects: Objects) -> None:
    objects.make(REQUEST, RUNS | {"running": 60, "reason": "no room in gke-main"})
    objects.make(RETURN, RUNS | {"total": 5, "returned": 2})
    objects.make(STATE, LED | {"running": 60, "brake": "memory_lost"}, "demo")
    objects.make(PART, None, "demo.log")

    columns, ((*row, age),) = objects.table(REQUEST)
    assert columns == ["Name", "Status", "Requested", "Available", "Template", "Why", "Age"]
    assert row == [NAME, "Running", 100, 60, "GkePod", "no room in gke-main"]
    assert age
    assert objects.table(RETURN)[1][0][:4] == [NAMES[RETURN], "Running", 5, 2]
    assert objects.table(STATE)[1][0][:4] == ["demo", 60, "memory_lost", 3]
    assert objects.table(PART)[1][0][:4] == ["demo.log", "log", 3, 17]


def test_requests_can_be_selected_by_their_fields(objects: Objects) -> None:
    objects.make(REQUEST, RUNS)
    objects.make(REQUEST, ENDED, "1a1b2c3d4e", template="GceVm")

    for selector, names in (
        ("status.phase=Complete", ["1a1b2c3d4e"]),
        ("spec.template=GkePod,spec.provisioner=demo", [NAME]),
        ("spec.provisioner=other", []),
    ):
        assert [row[0] for row in objects.table(REQUEST, fieldSelector=selector)[1]] == names


@pytest.mark.parametrize("schema", dict(schemas()).values(), ids=dict(schemas()))
def test_no_object_grows_until_etcd_refuses_it(schema: Document) -> None:
    assert most_bytes(schema) <= MOST_BYTES


def most_bytes(schema: Document, name: str = "") -> int:
    """Return the bytes of the largest document of a schema. Raises KeyError for a text, list or map without a limit."""
    if schema["type"] == "string":
        return 2 + (max(map(len, schema["enum"])) if "enum" in schema else int(schema["maxLength"]))
    if schema["type"] == "array":
        return int(schema["maxItems"]) * (1 + most_bytes(schema["items"]))
    if schema["type"] != "object":
        return NUMBER_BYTES
    sizes = {key: len(key) + 4 + most_bytes(one, key) for key, one in schema.get("properties", {}).items()}
    parts = list(sizes.values())
    for rule in schema.get("x-kubernetes-validations", ()):
        if only_one := re.fullmatch(r"!has\(self\.(\w+)\) \|\| !has\(self\.(\w+)\)", rule["rule"]):
            parts.append(-min(sizes[key] for key in only_one.groups()))
    if of_map := schema.get("additionalProperties"):
        entry = POLL_BYTES if name == "polled" else KEY_BYTES + most_bytes(of_map)
        parts.append(schema["maxProperties"] * entry)
    return 2 + sum(parts)
