"""The calls that the state makes to an API server, with the responses that a server must give.

``tests/kube`` makes the calls on a real server and compares the responses. ``tests/unit`` makes the calls on the server
in memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from provisioner.state.errors import StateError
from provisioner.state.kube.connection import MERGE, ApiServer
from provisioner.state.kube.objects import ANSWERS, API_VERSION, KINDS, NOTES, PARTS, READ, REQUESTS, RETURNS, STATES

Document = dict[str, Any]

LEASES = "leases"
ROOTS = {LEASES: "/apis/coordination.k8s.io/v1"}
ONE, TWO, ENDED = "YWI=", "YWM=", {"phase": "Complete", "answer": "YWI="}
SPEC = {"provisioner": "p", "template": "t", "count": 3, "created": 1.5}
LED = {"epoch": 3, "generation": 7}
RUNS = {"phase": "Running", **LED}
PART = {"provisioner": "p", "part": "log", "data": ONE, **LED}
TIME = "2026-01-01T00:00:00.000000Z"
HELD = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": TIME, "leaseTransitions": 0}
CONDITION = {"type": "a", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}
OF_RULE = 'Invalid value: "object": '
"""First words of the server's message about a rule. The message of the rule follows."""
CURRENT = "current"
"""Placeholder for a resourceVersion. It stands for the version that the object has now."""


class Step(NamedTuple):
    """A call. ``path``: resource, name, subresource and query, as in ``machinerequests/r000000001/status``."""

    method: str
    path: str
    body: Any
    expected: str
    """The expected response: the status, and then the reason or the fields that the server refuses. If the call raises
    an error, the class of the error."""
    partial: bool = False


class Answer(NamedTuple):
    """The response to a step."""

    summary: str
    document: Document


def post(path: str, spec: Any, expected: str, **metadata: Any) -> Step:
    resource, _, name = path.partition("/")
    return Step("POST", resource, made(resource, name, spec, metadata), expected)


def put(path: str, spec: Any, expected: str, **metadata: Any) -> Step:
    resource, name = path.split("/")[:2]
    return Step("PUT", path, made(resource, name, spec, metadata), expected)


def made(resource: str, name: str, spec: Any, metadata: Mapping[str, Any]) -> Document:
    kind = KINDS.get(resource, "Lease")
    version = API_VERSION if resource in KINDS else "coordination.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def patch(path: str, body: Any, expected: str = "200") -> Step:
    return Step("PATCH", path, body, expected)


def status(path: str, changes: Any, expected: str = "200") -> Step:
    return patch(f"{path}/status", {"status": changes}, expected)


def get(path: str, expected: str = "200", *, partial: bool = False) -> Step:
    return Step("GET", path, None, expected, partial)


def delete(path: str, expected: str = "200", body: Any = None) -> Step:
    return Step("DELETE", path, body, expected)


R1, R2, RET, ANS, STATE, LOG, NOTE, LEASE = (
    f"{REQUESTS}/r000000001",
    f"{REQUESTS}/r000000002",
    f"{RETURNS}/ret-r000000001",
    f"{ANSWERS}/r000000001.0",
    f"{STATES}/p",
    f"{PARTS}/p.log",
    f"{NOTES}/p",
    f"{LEASES}/p.loop",
)
SPECS = {R1: SPEC, RET: {"provisioner": "p", "names": ["a"], "created": 1}}


def ends(path: str) -> list[Step]:
    """Return the calls that create, change and end a request or a return request. Some of these calls break a rule of
    these objects."""
    spec = "422 spec"
    return [
        post(path, SPECS[path], "201"),
        post(path, SPECS[path], "409 AlreadyExists"),
        patch(path, {"spec": {"created": 2}}, spec),
        patch(path, {"spec": {"provisioner": None}}, "422 <nil> spec.provisioner"),
        put(path, {**SPECS[path], "created": 3}, spec, resourceVersion=CURRENT),
        put(path, SPECS[path], "409 Conflict", resourceVersion="1"),
        put(path, SPECS[path], "422 metadata.resourceVersion"),
        put(path, SPECS[path], "200", resourceVersion=CURRENT, annotations={"a": "b"}),
        status(path, {"phase": "Done", **LED}, "422 <nil> status.phase"),
        status(path, {"phase": "Running"}, "422 <nil> status.epoch status.generation"),
        status(path, {"phase": "Ended", **LED}, "422 status"),
        status(path, {**ENDED, "answer": None, **LED}, "422 status"),
        status(path, {**RUNS, "answer": TWO}),
        status(path, {**RUNS, "answer": TWO}),
        patch(f"{path}/status", {"metadata": {"annotations": {"c": "d"}}, "status": {"epoch": 3}}),
        patch(path, {"status": {"epoch": 9}}),
        status(path, {"epoch": 2}, "422 status"),
        status(path, {"generation": 6}, "422 status"),
        status(path, {"epoch": 4, "generation": 8}),
        status(path, {"answer": "A" * 700_004}, "422 <nil> status.answer"),
        status(path, {"conditions": [CONDITION]}),
        status(path, {"conditions": [CONDITION] * 2}, "422 status.conditions[1]"),
        status(path, {"conditions": [{**CONDITION, "type": str(i)} for i in range(9)]}, "422 <nil> status.conditions"),
        status(path, {"conditions": [{**CONDITION, "lastTransitionTime": "now"}]}, "422 <nil> "
               "status.conditions[0].lastTransitionTime"),
        patch(f"{path}/status", {"status": None}, "422 <nil>"),
        put(f"{path}/status", SPECS[path], "422 <nil>", resourceVersion=CURRENT),
        status(path, {"phase": "Ended", "answer": ONE}),
        status(path, {"phase": "Ended", "answer": TWO}),
        status(path, ENDED),
        status(path, {"answer": TWO}, "422 status"),
        status(path, {"answer": None}, "422 status status"),
        status(path, {"phase": "Running"}, "422 status"),
        status(path, {"phase": "CompleteWithError", "epoch": 9}, "422 status"),
        status(path, {"phase": "Running", "epoch": 1}, "422 status status"),
        status(path, {"epoch": 9, "failed": 2}),
        get(path),
        get(f"{path}/status"),
    ]  # fmt: skip


STEPS: Sequence[Step] = [
    get(REQUESTS),
    *ends(R1),
    *ends(RET),
    # new objects
    post(R2, {**SPEC, "unknown": 1}, "201"),
    post(R2, {**SPEC, "count": 4}, "409 AlreadyExists"),
    *[
        post(f"{REQUESTS}/{name}", {**SPEC, **changes}, expected)
        for name, changes, expected in [
            ("r000000003", {"count": 0}, "422 spec.count"),
            ("r000000003", {"count": 10_001}, "422 spec.count"),
            ("r000000003", {"count": "3"}, "422 <nil> spec.count"),
            ("r000000003", {"count": 3.5}, "422 <nil> spec.count"),
            ("r000000003", {"count": None}, "422 <nil> spec.count"),
            ("r000000003", {"provisioner": "", "created": "now"}, "422 <nil> spec.created spec.provisioner"),
            ("r000000003", {"account": "x" * 256}, "422 <nil> spec.account"),
            ("R_3", {}, "422 <nil> metadata.name"),
            ("test", {}, "422 <nil>"),
            ("ret-r000000003", {}, "422 <nil>"),
            ("", {}, "422 <nil> metadata.name"),
            ("r000000003", {"count": 3.0, "account": None}, "201"),
            ("r000000004", {"created": 1790000000.25}, "201"),
        ]
    ],
    Step("POST", REQUESTS, {**made(REQUESTS, "r000000005", SPEC, {}), "status": RUNS}, "201"),
    get(f"{REQUESTS}/r000000005"),
    Step("POST", REQUESTS, {**made(REQUESTS, "r000000006", SPEC, {}), "spec": None}, "422 <nil> spec"),
    Step("POST", REQUESTS, {**made(REQUESTS, "r000000006", SPEC, {}), "kind": "MachineReturn"}, "422 kind"),
    post(f"{REQUESTS}/r000000006", SPEC, "StateUnreachable", resourceVersion="5"),
    post(f"{REQUESTS}/r000000006", SPEC, "422 <nil> metadata.annotations", annotations={"a": "x" * 262_144}),
    Step("POST", f"../elsewhere/{REQUESTS}", made(REQUESTS, "r000000006", SPEC, {}), "StateMissing"),
    Step("GET", f"../elsewhere/{REQUESTS}", None, "200"),
    get("nothings", "StateMissing"),
    get("nothings/a", "StateMissing"),
    # metadata
    patch(R2, {"metadata": {"annotations": {READ: "1.5"}}}),
    patch(R2, {"metadata": {"annotations": {READ: "1.5"}}}),
    patch(R2, {"metadata": {"annotations": {READ: "2.5", "a": "b"}, "labels": {"c": "d"}}}),
    patch(R2, {"metadata": {"annotations": {READ: None}}}),
    patch(R2, {"metadata": {"annotations": {READ: 5}}}, "422 patch"),
    patch(R2, {"metadata": {"resourceVersion": "1"}}, "409 Conflict"),
    patch(R2, {"metadata": {"resourceVersion": CURRENT, "annotations": None}}),
    put(f"{REQUESTS}/none", SPEC, "404 NotFound", resourceVersion="1"),
    put(f"{REQUESTS}/none", SPEC, "404 NotFound"),
    Step("PUT", R2, made(REQUESTS, "r000000003", SPEC, {"resourceVersion": CURRENT}), "StateError"),
    patch(f"{REQUESTS}/none", {}, "404 NotFound"),
    get(f"{REQUESTS}/none", "404 NotFound"),
    delete(f"{REQUESTS}/none", "404 NotFound"),
    # lists
    status(R2, RUNS),
    *[
        get(f"{REQUESTS}?{query}", expected)
        for query, expected in [
            ("fieldSelector=spec.provisioner%3Dp", "200"),
            ("fieldSelector=spec.provisioner%3D%3Dp%2Cstatus.phase%3DRunning", "200"),
            ("fieldSelector=status.phase%21%3DRunning", "200"),
            ("fieldSelector=status.phase%3D", "200"),
            ("fieldSelector=metadata.name%3Dr000000002", "200"),
            ("fieldSelector=spec.count%3D3", "StateError"),
            ("resourceVersion=0", "200"),
            ("resourceVersion=1", "200"),
        ]
    ],
    get(REQUESTS, partial=True),
    # answers, which are made once
    post(ANS, {"provisioner": "p", "request": "r000000001", "kind": "Reported", "answer": ONE}, "201"),
    post(ANS, {"provisioner": "p", "request": "r000000001", "kind": "Claimed", "answer": TWO}, "409 AlreadyExists"),
    patch(ANS, {"spec": {"answer": TWO}}, "422 spec"),
    patch(ANS, {"metadata": {"labels": {"a": "b"}}}),
    patch(f"{ANS}/status", {}, "404 NotFound"),
    post(f"{ANSWERS}/r000000001.1", {"provisioner": "p", "request": "r000000001", "kind": "Claimed"}, "422 spec"),
    post(f"{ANSWERS}/r000000001.1", {"provisioner": "p", "request": "r000000001", "kind": "Assumed"}, "201"),
    post(f"{ANSWERS}/r000000001.x", {"provisioner": "p", "request": "r000000001", "kind": "Assumed"}, "422 <nil>"),
    post(f"{ANSWERS}/r000000001.2", {"provisioner": "p", "request": "r000000002", "kind": "Assumed"}, "422 <nil>"),
    post(
        f"{ANSWERS}/r000000001.2", {"provisioner": "p", "request": "r000000001", "kind": "Said"}, "422 <nil> spec.kind"
    ),
    # the loop's own objects
    post(STATE, {"provisioner": "p", "holds": [{"kind": "pause"}]}, "201"),
    patch(STATE, {"spec": {"holds": [{"kind": "pause"}, {"kind": "pause", "target": ""}]}}, "422 spec.holds[1]"),
    patch(STATE, {"spec": {"holds": [{"kind": "pouse"}]}}, "422 <nil> spec.holds[0].kind"),
    patch(STATE, {"spec": {"holds": [{"kind": "drain", "target": None, "reason": "x"}]}}),
    status(STATE, {**LED, "available": {"t": 3}, "unknown": 1}),
    status(STATE, {"generation": 6}, "422 status"),
    status(STATE, {"epoch": 2}, "422 status"),
    status(STATE, {"available": {"t": None, "u": 4}}),
    status(STATE, {"available": {str(i): i for i in range(1001)}}, "422 <nil> status.available"),
    patch(f"{STATE}/status", {"status": None}, "422 <nil>"),
    post(LOG, PART, "201"),
    put(LOG, {**PART, "generation": 8, "data": TWO}, "200", resourceVersion=CURRENT),
    put(LOG, {**PART, "generation": 8, "data": TWO}, "200", resourceVersion=CURRENT),
    put(LOG, PART, "422 spec", resourceVersion=CURRENT),
    put(LOG, {**PART, "epoch": 2, "generation": 9}, "422 spec", resourceVersion=CURRENT),
    put(LOG, {**PART, "generation": 9}, "409 Conflict", resourceVersion="1"),
    put(LOG, {**PART, "generation": 8, "data": "A" * 700_004}, "422 <nil> spec.data", resourceVersion=CURRENT),
    post(NOTE, {"provisioner": "p", "shown": {"t": 3}}, "201"),
    patch(NOTE, {"spec": {"shown": {"t": 4, "u": 5}, "refused": {"script": {"total": 1, "since": 2.5}}}}),
    patch(NOTE, {"spec": {"read": [{"at": 1, "digests": "x"}] * 4}}, "422 <nil> spec.read"),
    patch(NOTE, {"spec": {"read": [{"at": 1.0}]}}, "422 <nil> spec.read[0].digests"),
    # the lease
    post(LEASE, {**HELD, "unknown": 1}, "201"),
    post(LEASE, HELD, "409 AlreadyExists"),
    put(LEASE, HELD, "422 metadata.resourceVersion"),
    put(LEASE, HELD, "409 Conflict", resourceVersion="1"),
    put(LEASE, {**HELD, "holderIdentity": "b"}, "200", resourceVersion=CURRENT, annotations={"a": "b"}),
    put(LEASE, {**HELD, "holderIdentity": "b"}, "200", resourceVersion=CURRENT, annotations={"a": "b"}),
    put(f"{LEASES}/other", HELD, "201"),
    put(f"{LEASES}/another", HELD, "201", resourceVersion="1"),
    patch(LEASE, {"spec": {"holderIdentity": ""}}),
    patch(LEASE, {"spec": {"renewTime": "2026-01-01T02:00:00.123456+02:00", "acquireTime": None}}),
    patch(LEASE, {"spec": {"renewTime": "2026-01-01T00:00:00Z"}}, "422 patch"),
    put(LEASE, {**HELD, "renewTime": "2026-01-01T00:00:00Z"}, "StateError", resourceVersion=CURRENT),
    patch(LEASE, {"spec": {"leaseDurationSeconds": 0}}, "422 spec.leaseDurationSeconds"),
    patch(LEASE, {"spec": {"leaseTransitions": -1}}, "422 spec.leaseTransitions"),
    get(LEASES),
    # deletes
    delete(R2, "409 Conflict", {"preconditions": {"resourceVersion": "1"}}),
    delete(R2),
    delete(R2, "404 NotFound"),
    post(R2, SPEC, "201"),
    get(R2),
    delete(LEASE),
    delete(f"{REQUESTS}?fieldSelector=spec.provisioner%3Dp"),
    get(REQUESTS),
]


def path_of(namespace: str, path: str) -> str:
    """Return the full path of a step."""
    if path.startswith("../"):
        _, namespace, path = path.split("/", 2)
    root = ROOTS.get(path.partition("/")[0].partition("?")[0], f"/apis/{API_VERSION}")
    return f"{root}/namespaces/{namespace}/{path}"


def play(server: ApiServer, step: Step) -> Answer:
    """Make the call of a step."""
    path, body = path_of(server.namespace, step.path), step.body
    if body and body.get("metadata", {}).get("resourceVersion") == CURRENT:
        version = server.call("GET", path.removesuffix("/status")).document["metadata"].get("resourceVersion", "1")
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
    content = MERGE if step.method == "PATCH" else "application/json"
    try:
        response = server.call(step.method, path, body, content=content, partial=step.partial)
    except StateError as error:
        return Answer(type(error).__name__, {})
    assert response.at > 1_700_000_000, "each answer has a Date"
    return Answer(f"{response.status} {summary(response.document)}".strip(), plain(response.document))


def summary(document: Document) -> str:
    """Return the refused fields or, if there are none, the reason of the refusal; empty if the document is no
    refusal."""
    if document.get("status") != "Failure":
        return ""
    causes = (document.get("details") or {}).get("causes") or ()
    return " ".join(sorted(cause["field"] for cause in causes)) or str(document["reason"])


def plain(document: Any) -> Any:
    """Return a document without the values that differ from run to run. The texts of refusals are left out, except the
    texts of rules."""
    if isinstance(document, list):
        return [plain(one) for one in document]
    if not isinstance(document, dict):
        return document
    left_out = {"uid", "creationTimestamp", "managedFields", "resourceVersion", "continue"}
    if document.get("kind") == "Status" or ("field" in document and OF_RULE not in document["message"]):
        left_out |= {"message"}
    found = {name: plain(one) for name, one in document.items() if name not in left_out}
    if "causes" in found:
        found["causes"].sort(key=lambda cause: (cause.get("field", ""), cause.get("message", "")))
    return found


def pages(server: ApiServer, resource: str) -> Iterator[list[str]]:
    """Read a list in pages of two objects.

    Yield for each page its objects' names and the number of objects after it.
    """
    query = "limit=2"
    while query:
        document = server.call("GET", path_of(server.namespace, f"{resource}?{query}")).document
        metadata = document["metadata"]
        yield [*(one["metadata"]["name"] for one in document["items"]), str(metadata.get("remainingItemCount", ""))]
        query = f"limit=2&continue={metadata['continue']}" if metadata.get("continue") else ""


def watched(server: ApiServer, path: str, most: int) -> list[tuple[str, Document]]:
    """Return the first events of a watch, without bookmarks."""
    watch = server.watch(path_of(server.namespace, path), 20.0)
    found = []
    for event in watch:
        if event["type"] != "BOOKMARK":
            found.append((event["type"], plain(event["object"])))
        if len(found) == most:
            break
    watch.close()
    return found


OBJECTS: Mapping[str, Document] = {
    **{path: {"spec": SPECS[path], "status": {**RUNS, "answer": ONE}} for path in SPECS},
    ANS: {"spec": {"provisioner": "p", "request": "r000000001", "kind": "Reported", "answer": ONE}},
    STATE: {"spec": {"provisioner": "p", "holds": [{"kind": "pause"}]}, "status": LED},
    LOG: {"spec": PART},
    NOTE: {"spec": {"provisioner": "p", "shown": {"t": 3}}},
    LEASE: {"spec": HELD},
}
"""A valid object of each kind, without its metadata."""

VALUES: tuple[Any, ...] = ("", "p", ONE, "x" * 700, 0, 3, 4, -1, 2.5)
PHASES = ("Waiting", "Running", "Ended", "Complete", "CompleteWithError")


def random_steps(seed: int, count: int) -> Iterator[Step]:
    """Yield ``count`` calls that the seed determines. Many of them break a limit or a rule."""
    chance = random.Random(seed)
    for _ in range(count):
        path = chance.choice(list(OBJECTS))
        resource, name = path.split("/")
        part = chance.choice(list(OBJECTS[path]))
        body = changed(chance, OBJECTS[path][part])
        under = "/status" if part == "status" else ""
        metadata = {"annotations": {READ: chance.choice(["1", "2"])}} if chance.random() < 0.3 else {}
        version = {"resourceVersion": chance.choice([CURRENT, CURRENT, "1", ""])}
        match chance.choice(["post", "put", "patch", "patch", "patch", "patch", "get", "delete"]):
            case "post":
                yield post(path, OBJECTS[path]["spec"] if under else body, "", **metadata)
            case "put":
                whole = made(resource, name, OBJECTS[path]["spec"], metadata | version)
                yield Step("PUT", path + under, whole | {part: body}, "")
            case "patch":
                yield patch(path + under, {part: body} | ({"metadata": metadata} if metadata else {}))
            case "get":
                listed = path.partition("/")[0]
                yield chance.choice([get(path), get(listed), get(listed, partial=True)])
            case "delete":
                yield delete(path)


def changed(chance: random.Random, value: Document) -> Document:
    """Return an object with random changes of some of its fields."""
    found = dict(value)
    for name in chance.sample(list(value), min(len(value), chance.choice([0, 1, 1, 2]))):
        same = (value[name], type(value[name])(), *(one for one in VALUES if type(one) is type(value[name])))
        found[name] = chance.choice(PHASES if name == "phase" else (None, *same))
        if name in LED and chance.random() < 0.8:
            found[name] = chance.randrange(10)
    return found
