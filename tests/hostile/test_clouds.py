"""Clouds and proxies whose responses are endless, too large, or nonsense."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests
import urllib3
from google.auth.exceptions import GoogleAuthError

from provisioner.backends import Backend, BackendError, client_connections, google_auth
from provisioner.backends.call_budget import CallBudget
from provisioner.backends.gke import api as gke_api
from provisioner.backends.gke import pod_cache, pod_watch
from provisioner.backends.gke.api import KubeApi, KubeTimes
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.own_pods import Identity
from provisioner.backends.gke.pod_cache import PodCache
from provisioner.backends.gke.pod_watch import PodWatch, events
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.backends.gke.shared_pod_caches import PodCaches, PodList
from provisioner.backends.google_auth import GoogleToken, NoCredentials, smaller_page
from provisioner.backends.mig import api as mig_api
from provisioner.backends.mig.api import ComputeApi, ComputeTimes
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.commands import observe_pools
from provisioner.model import Create, ErrorClass
from provisioner.schema.setting_types import Site
from tests.conformance.stage import SECONDS, Case, Grid, stage
from tests.hostile.figures import ATTACK, MEBIBYTES
from tests.support.clients.kube_access import Plain
from tests.support.clouds.hostile import (
    BOUNDLESS,
    CHUNKED,
    LARGE,
    NONSENSE,
    TIMELESS,
    HostileCloud,
    chunk,
    dripping,
    whole,
)
from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
SHORT = 0.5
"""Seconds that a call may take in these tests."""
NAME = "hf-abcdefghij-000001"
ENDED_BY_SIGTERM = 10.0
"""Seconds within which SIGTERM ends a loop."""


def gke(directory: Path, address: str, call: float = SHORT) -> GkeBackend:
    (directory / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
    pool = GkePool(name="gke", endpoint=address, pod_spec=directory / "pod.yaml", namespace="grid", observe_seconds=1)
    return GkeBackend(pool, Namespaces(KubeTimes(call=call)), provisioner="demo")


def mig(_: Path, address: str, call: float = SHORT) -> MigBackend:
    place = {"project": "demo-project", "zone": "us-central1-a", "group": "hf-a"}
    pool = MigPool(name="mig", endpoint=address, observe_seconds=1, lag_seconds=1, **place)
    return MigBackend(pool, Projects(Site("demo", "hf"), times=ComputeTimes(call=call, admission=call)))


def observe(backend: Backend) -> str:
    with pytest.raises(BackendError) as caught:
        backend.observe(1.0, {NAME: "u"})
    return caught.value.failure.text


def create(backend: Backend) -> str:
    (outcome,) = backend.create([Create(NAME, backend.pool, "small", "abcdefghij")], lambda: True)
    assert outcome.failure is not None
    return outcome.failure.text


BACKENDS: dict[str, Callable[..., Backend]] = {"gke": gke, "mig": mig}
CALLS: dict[str, Callable[[Backend], str]] = {"look": observe, "create": create}
EVERY_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
EVERY_BACKEND = pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)


@EVERY_CALL
@EVERY_BACKEND
@pytest.mark.parametrize("answer", TIMELESS.values(), ids=TIMELESS)
def test_a_response_without_an_end_fails_in_the_time_of_a_call(
    tmp_path: Path, make: Any, call: Any, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with HostileCloud(answer) as cloud:
        text = call(made := make(tmp_path, cloud.address))
        made.close()
    place = cloud.address.removeprefix("http://")
    assert re.search(rf"{place}: (GET|POST) /\S+: no complete response within 0\.5 s", text), text
    assert "unexpected" not in caplog.text


@EVERY_BACKEND
@pytest.mark.parametrize("answer", BOUNDLESS.values(), ids=BOUNDLESS)
def test_a_large_response_is_refused_with_its_place_call_and_limit(tmp_path: Path, make: Any, answer: Any) -> None:
    with HostileCloud(answer) as cloud:
        made = make(tmp_path, cloud.address, SECONDS * PATIENCE)
        text = observe(made)
        made.close()
    place = cloud.address.removeprefix("http://")
    expected = (
        rf"{place}: GET /\S+: the response, or a part of it, has more than (256 KiB|20480 KiB|20 MiB|1500000 values)"
    )
    assert re.search(expected, text), text


GROWTH = """
import resource, sys, time
from pathlib import Path
from tests.hostile.test_clouds import BACKENDS, observe
made = BACKENDS[sys.argv[1]](Path(sys.argv[2]), sys.argv[3], 30.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begun = time.monotonic()
observe(made)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, time.monotonic() - begun)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("answer", BOUNDLESS)
def test_a_large_response_takes_less_than_200_mib(
    tmp_path: Path, kind: str, answer: str, record_property: Callable[[str, object], None]
) -> None:
    with HostileCloud(BOUNDLESS[answer]) as cloud:
        done = subprocess.run(
            [sys.executable, "-c", GROWTH, kind, str(tmp_path), cloud.address],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )
    assert done.stdout, done.stderr
    growth, seconds = done.stdout.split()
    record_property(ATTACK, {ATTACK: f"{answer}, {kind}", "growth": growth, "probe": f"{float(seconds):.1f}"})
    assert int(growth) < min(MEBIBYTES, LARGE)


@EVERY_CALL
@EVERY_BACKEND
@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_a_failed_call_and_no_internal_error(
    tmp_path: Path, make: Any, call: Any, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with HostileCloud(answer) as cloud:
        made = make(tmp_path, cloud.address)
        assert call(made)
        made.close()
    assert "unexpected" not in caplog.text
    assert "Traceback" not in caplog.text


@EVERY_CALL
@EVERY_BACKEND
def test_a_redirect_is_not_followed(tmp_path: Path, make: Any, call: Any) -> None:
    with HostileCloud(lambda: iter([whole(b"{}")])) as other:
        head = f"HTTP/1.1 307 Moved\r\nLocation: {other.address}/x\r\n".encode()
        with HostileCloud(lambda: iter([whole(b"{}", head)])) as cloud:
            made = make(tmp_path, cloud.address)
            assert "307" in call(made)
            made.close()
        assert cloud.asked
        assert other.asked == []


def test_a_list_of_500_pods_of_20_kb_each_is_taken(tmp_path: Path) -> None:
    """The backend must accept this list. It has half of the permitted bytes, and as many JSON values as real pods of
    this size can have."""
    fields = {f"f:field-{number}": {"f:value": {}, ".": {}} for number in range(490)}
    entry = {"manager": "kubelet", "fieldsV1": fields}
    pods = [{"metadata": {"name": f"x-{n}", "uid": f"{n}", "managedFields": [entry]}} for n in range(500)]
    body = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": pods}).encode()
    assert len(body) > 10_000_000
    names = json.dumps({"metadata": {"uid": "u", "name": "grid"}}).encode()
    answers = iter([body, names])
    with HostileCloud(lambda: iter([whole(next(answers))])) as cloud:
        backend = gke(tmp_path, cloud.address)
        backend._api.times = KubeTimes()
        assert backend.observe(1.0, {}).machines == {}
        backend.close()


HELLO = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"
"""The beginning of a TLS server's first record, of 16 KiB."""


def by_pool(url: str, proxy: str | None) -> None:
    options = {"cert_reqs": "CERT_NONE"}
    pool = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
    KubeApi(Plain(url, client_connections.limit_responses(pool)), KubeTimes(call=SHORT)).get(
        "/api/v1/namespaces/grid/pods"
    )


def by_session(url: str, proxy: str | None) -> None:
    session = google_auth.bounded_session(requests.Session())
    session.get(url, verify=False, timeout=SHORT, proxies={"https": proxy} if proxy else {})


@pytest.mark.parametrize("call", [by_pool, by_session])
def test_a_handshake_that_drips_ends_with_the_time_of_the_call(call: Any) -> None:
    with (
        HostileCloud(lambda: dripping(HELLO, b"\x00"), unasked=True) as cloud,
        pytest.raises(Exception, match=r"Read timed out\. \(read timeout=0\.5\)"),
    ):
        call(cloud.address.replace("http:", "https:"), None)


@pytest.mark.parametrize("call", [by_pool, by_session])
def test_a_proxy_that_drips_ends_with_the_time_of_the_call(call: Any) -> None:
    with (
        HostileCloud(TIMELESS["a head that drips"]) as proxy,
        pytest.raises(Exception, match=r"CONNECT: no complete response within 0\.5 s"),
    ):
        call("https://cloud.example", proxy.address)


# --- lists ------------------------------------------------------------------------------------------------------------


def pages(document: dict[str, Any], part: str, key: str) -> Callable[[], Iterator[bytes]]:
    """Return a function whose responses are pages of an endless list: each page names a further page."""
    numbers = count()

    def answer() -> Iterator[bytes]:
        mark = {key: f"page-{next(numbers)}"}
        yield whole(json.dumps(document | ({part: mark} if part else mark)).encode())

    return answer


def kube_pages() -> Callable[[], Iterator[bytes]]:
    return pages({"kind": "PodList", "items": []}, "metadata", "continue")


def test_a_list_of_an_api_server_has_a_number_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gke_api, "MOST_PAGES", 3)
    with HostileCloud(kube_pages()) as cloud, pytest.raises(BackendError, match=r"/api/v1/nodes: .* than 3 pages"):
        list(KubeApi(Plain(cloud.address)).items("/api/v1/nodes", {}))
    assert len([line for line in cloud.asked if line.startswith(b"GET")]) == 3


def test_a_list_of_an_api_server_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gke_api, "LIST_SECONDS", 0.0)
    with HostileCloud(kube_pages()) as cloud, pytest.raises(BackendError, match="has not ended within 0 s"):
        list(KubeApi(Plain(cloud.address)).items("/api/v1/nodes", {}))


class HeavyList:
    """A cloud with a list. Pages with more than ``fits`` objects are too large."""

    def __init__(self, total: int, fits: int) -> None:
        self._total, self._fits = total, fits
        self.asked: list[tuple[int, int]] = []
        """The first object and the limit of each page that was asked for."""
        self.cloud = HostileCloud(self._answer)

    def _answer(self) -> Iterator[bytes]:
        query = dict(parse_qsl(urlsplit(self.cloud.asked[-1].decode().split()[1]).query))
        begin = int(query.get("continue") or query.get("pageToken") or 0)
        limit = int(query.get("limit") or query["maxResults"])
        self.asked.append((begin, limit))
        end = min(begin + limit, self._total)
        more = {"metadata": {"continue": f"{end}"}, "nextPageToken": f"{end}"} if end < self._total else {}
        items = [{"name": f"{number:03}"} for number in range(begin, end)]
        document = {"kind": "compute#instanceList", "items": items, **more}
        yield whole(json.dumps(document).encode() + b" " * (end - begin > self._fits and client_connections.BODY_BYTES))


def kube_list(address: str) -> list[str]:
    return [item["name"] for item in KubeApi(Plain(address)).items("/api/v1/nodes", {})]


def compute_list(address: str) -> list[str]:
    group = MigPool(name="mig", project="p", zone="us-central1-a", group="g", endpoint=address)
    reads = ComputeApi(group, NoCredentials(address), "hf", CallBudget(100, 1.0), ComputeTimes())
    return list(reads.instances("z", time.monotonic() + SECONDS * PATIENCE))


EVERY_LIST = pytest.mark.parametrize("listed", [kube_list, compute_list])


@EVERY_LIST
def test_a_page_that_is_too_large_is_asked_for_again_by_half_of_its_objects(
    listed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connections, "BODY_BYTES", 1 << 16)
    heavy = HeavyList(600, 200)
    with heavy.cloud as cloud:
        assert listed(cloud.address) == [f"{number:03}" for number in range(600)]
    assert heavy.asked == [(0, 500), (0, 250), *((begin, 125) for begin in range(0, 600, 125))]


def test_a_list_of_an_api_server_has_a_time_also_if_each_page_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connections, "BODY_BYTES", 1 << 16)
    heavy = HeavyList(600, 0)

    def monotonic() -> float:
        return gke_api.LIST_SECONDS * len(heavy.asked) / 2

    monkeypatch.setattr(gke_api, "time", SimpleNamespace(monotonic=monotonic))
    with heavy.cloud as cloud, pytest.raises(BackendError, match="has not ended within 300 s"):
        kube_list(cloud.address)
    assert [limit for _, limit in heavy.asked] == [500, 250, 125]


@EVERY_LIST
def test_a_head_that_is_too_large_fails_the_look_at_once(listed: Any) -> None:
    with HostileCloud(BOUNDLESS["a flood of 100 Continue"]) as cloud, pytest.raises(BackendError, match="256 KiB"):
        listed(cloud.address)
    assert len(cloud.asked) == 1


def test_a_token_that_is_too_large_makes_no_page_smaller() -> None:
    refused, error = GoogleAuthError("no token"), BackendError(ErrorClass.UNAVAILABLE, "no Google token")
    refused.__cause__, error.__cause__ = client_connections.LargeBody("a token"), refused
    with pytest.raises(BackendError, match="no Google token"):
        smaller_page(500, error)


@EVERY_LIST
def test_an_object_that_is_too_large_by_itself_fails_the_look(listed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connections, "BODY_BYTES", 1 << 16)
    heavy = HeavyList(600, 0)
    with (
        heavy.cloud as cloud,
        pytest.raises(BackendError, match="0 MiB, although the page has only one object"),
    ):
        listed(cloud.address)
    assert [limit for _, limit in heavy.asked] == [500, 250, 125, 62, 31, 15, 7, 3, 1]


def test_a_list_of_compute_has_a_number_of_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mig_api, "MOST_PAGES", 3)
    with HostileCloud(pages({"kind": "compute#instanceGroupManagerList"}, "", "nextPageToken")) as cloud:
        backend = mig(tmp_path, cloud.address, SECONDS * PATIENCE)
        assert "instanceGroupManagers: the list has more than 3 pages" in observe(backend)
        backend.close()
    assert len([line for line in cloud.asked if line.startswith(b"GET")]) == 3


def test_a_list_and_a_cache_hold_a_number_of_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_cache, "MOST_PODS", 2)
    identity = Identity("demo", "gke")
    names = [f"hf-abcdefghij-{number:06}" for number in range(3)]
    pods = [
        {"metadata": {"name": name, "uid": name, "labels": identity.labels(Create(name, "gke", "small", "abcdefghij"))}}
        for name in names
    ]
    listed, cache = PodList([identity]), PodCache(identity)
    for one in pods[:2]:
        listed.take("ADDED", one)
        cache.apply("ADDED", one)
    with pytest.raises(BackendError, match="more than 2 pods"):
        listed.take("ADDED", pods[2])
    with pytest.raises(BackendError, match="more than 2 pods"):
        cache.apply("ADDED", pods[2])
    cache.apply("MODIFIED", pods[0])
    assert set(cache.machines(1.0)) == set(names[:2])


# --- watches ----------------------------------------------------------------------------------------------------------


def test_a_line_of_a_watch_has_a_greatest_length_and_the_look_fails(caplog: pytest.LogCaptureFixture) -> None:
    with HostileCloud(BOUNDLESS["a body of 600 MiB"]) as cloud:
        watch = PodWatch(
            KubeApi(Plain(cloud.address), KubeTimes(first_observation=SECONDS)), "grid", "a=b", PodCaches()
        )
        watch.start()
        with pytest.raises(BackendError, match=r"GET \S+/pods: the response, or a part of it, has more than 4 MiB"):
            watch.check()
        watch.close()
    assert "unexpectedly" not in caplog.text


def test_a_line_of_a_watch_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with HostileCloud(TIMELESS["a body that drips"]) as cloud:
        times = KubeTimes(silence=SHORT, first_observation=SECONDS)
        watch = PodWatch(KubeApi(Plain(cloud.address), times), "grid", "a=b", PodCaches())
        watch.start()
        with pytest.raises(BackendError, match="no complete response within") as caught:
            watch.check()
        watch.close()
    assert caught.value.failure.error is ErrorClass.TIMEOUT


def test_each_line_of_a_watch_has_the_time_and_the_size_of_a_response_again() -> None:
    renewed: list[int] = []
    stream = SimpleNamespace(
        stream=lambda _: iter([b'{"n":1}\n{"n":', b"2}\n"]), allowance=SimpleNamespace(renew=renewed.append)
    )
    assert [event["n"] for event in events(stream)] == [1, 2]
    assert len(renewed) == 2
    allowance = client_connections.Allowance("a call", 60.0, time.monotonic() - 61.0)
    with pytest.raises(client_connections.LateResponse, match="a call: no complete response within 60 s"):
        allowance.seconds()
    allowance.renew(1)
    assert 0 < allowance.seconds() <= 60.0
    with pytest.raises(client_connections.LargeResponse):
        allowance.take(2)


def test_a_streamed_list_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_watch, "LIST_SECONDS", -1.0)
    event = (
        json.dumps({"type": "ADDED", "object": {"metadata": {"name": "x", "resourceVersion": "1"}}}).encode() + b"\n"
    )
    with HostileCloud(lambda: iter([CHUNKED + b"\r\n" + chunk(event)])) as cloud:
        watch = PodWatch(
            KubeApi(Plain(cloud.address), KubeTimes(first_observation=SECONDS)), "grid", "a=b", PodCaches()
        )
        watch.start()
        with pytest.raises(BackendError, match="the streamed list has not ended within"):
            watch.check()
        watch.close()


# --- token servers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def signing_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(serialization.Encoding.PEM, *private).decode()


TOKENS = {
    "lives for no number of seconds": b'{"access_token":"t","expires_in":"soon"}',
    "lives for ever": b'{"access_token":"t","expires_in":1e300}',
    "is no text": b'{"access_token":[[]],"expires_in":3600}',
    "is not there": b"{}",
    "is a list": b"[]",
    "is nested": b"[" * 100_000,
}


@pytest.mark.parametrize(
    "answer",
    [*(lambda body=body: iter([whole(body)]) for body in TOKENS.values()), *TIMELESS.values(), *BOUNDLESS.values()],
    ids=[*TOKENS, *TIMELESS, *BOUNDLESS],
)
def test_a_token_server_is_believed_as_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signing_key: str, answer: Any
) -> None:
    monkeypatch.setattr(google_auth, "TOKEN_SECONDS", SHORT)
    with HostileCloud(answer) as cloud:
        account = {"type": "service_account", "client_email": "x@example.iam", "private_key": signing_key}
        (tmp_path / "key.json").write_text(json.dumps({**account, "token_uri": f"{cloud.address}/token"}))
        with pytest.raises(BackendError, match="no Google token"):
            GoogleToken(tmp_path / "key.json").header()


# --- the loop ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cloud() -> Iterator[Any]:
    with stage() as running:
        yield running


HOSTILE: dict[str, dict[str, object]] = {
    "mig": {"kind": "mig", "project": "p-roject", "zone": "us-central1-a", "group": "hf-a"},
    "gke": {"kind": "gke", "namespace": "grid", "pod_spec": "pod.yaml"},
}


def test_a_place_that_does_not_answer_holds_up_neither_start_nor_end_nor_other_pools(
    tmp_path: Path, cloud: Any
) -> None:
    with (
        HostileCloud(TIMELESS["a head that drips"]) as bad,
        Grid(tmp_path, cloud, Case(1, "", lambda _: None, loop=False)) as hf,
    ):
        pools = hf.settings["pools"]
        assert isinstance(pools, dict)
        hf.configure(pools=pools | {name: one | {"endpoint": bad.address} for name, one in HOSTILE.items()})
        environment = {**os.environ, **hf.environment, "KUBECONFIG": str(hf.simulator.kubeconfig)}
        with subprocess.Popen(
            [sys.executable, "-m", "provisioner", "run", "--listen", "127.0.0.1:0"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        ) as loop:
            try:
                asked = hf.request("T2", 2)
                until(lambda: hf._published(asked, lambda answer: answer.ended), 2 * SECONDS, what="the request ends")
                assert hf.status(asked)[0]["status"] == "complete"
                loop.send_signal(signal.SIGTERM)
                until(lambda: loop.poll() is not None, ENDED_BY_SIGTERM, what="SIGTERM ends the loop")
                errors = loop.stderr.read() if loop.stderr else ""
            finally:
                loop.kill()
        assert (loop.returncode, "Traceback" in errors) == (0, False), errors
        assert "Provisioner ended" in errors


def test_a_name_server_that_does_not_answer_holds_up_no_start(
    tmp_path: Path, cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, resolve = threading.Event(), socket.getaddrinfo

    def hang(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "hangs.example":
            released.wait(60 * PATIENCE)
            raise socket.gaierror("released")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(observe_pools, "CHECK_SECONDS", SHORT)
    with Grid(tmp_path, cloud, Case(3, "", lambda _: None, loop=False)) as hf:
        pools = hf.settings["pools"]
        assert isinstance(pools, dict)
        hf.configure(pools=pools | {"mig": HOSTILE["mig"] | {"endpoint": "http://hangs.example"}})
        try:
            hf.start_loop()
            hf.complete(1)
            hf.stop_loop()
        finally:
            released.set()


BEGIN = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from provisioner import __main__
from provisioner.commands import observe_pools, loop_service
from provisioner.loop.loop import Loop
{}
sys.argv = ["provisioner", "run", "--listen", "127.0.0.1:0"]
__main__.main()
"""
HANGS = {
    "the questions of the start": """
observe_pools.CHECK_SECONDS = loop_service.END_SECONDS = 600; print('held', flush=True)
""",
    "something without a bound": """
loop_service.END_SECONDS = 1
Loop.run = lambda *_, **__: (print("held", flush=True), time.sleep(600))
""",
    "threads that Python waits for": """
loop_service.END_SECONDS = 600
Loop.run = lambda *_, **__: (ThreadPoolExecutor(1).submit(time.sleep, 600), print("held", flush=True))
""",
}


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_sigterm_ends_a_loop_that_hangs_in(tmp_path: Path, cloud: Any, hang: str) -> None:
    with HostileCloud(TIMELESS["silence"]) as bad, Grid(tmp_path, cloud, Case(4, "", lambda _: None, loop=False)) as hf:
        pools = hf.settings["pools"]
        assert isinstance(pools, dict)
        if "CHECK_SECONDS" in hang:
            hf.configure(pools=pools | {"mig": HOSTILE["mig"] | {"endpoint": bad.address}})
        with subprocess.Popen(
            [sys.executable, "-c", BEGIN.format(hang)],
            env={**os.environ, **hf.environment, "KUBECONFIG": str(hf.simulator.kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as loop:
            try:
                assert loop.stdout is not None
                assert loop.stdout.readline() == "held\n"
                if "CHECK_SECONDS" in hang:
                    until(lambda: bad.asked, SECONDS, what="a question is under way")
                loop.send_signal(signal.SIGTERM)
                until(lambda: loop.poll() is not None, ENDED_BY_SIGTERM, what="SIGTERM ends the loop")
                errors = loop.stderr.read() if loop.stderr else ""
            finally:
                loop.kill()
        assert (loop.returncode, "Traceback" in errors) == (0, False), errors
        ended = [json.loads(line) for line in errors.splitlines() if "Ended with work under way" in line]
        assert [(line["severity"], line["at"]) for line in ended] == (
            [("WARNING", "provisioner.commands.loop_service.Service.run")] if "END_SECONDS = 1\n" in hang else []
        )
        assert all("server" in line["threads"] for line in ended)


def test_the_bound_of_a_response_is_the_same_for_all_clients() -> None:
    """Only the module of connections may make connection pools and HTTP sessions, because it limits the size of each
    response."""
    makers = re.compile(r"\b(requests\.Session\(|PoolManager\(|HTTPAdapter\(|urlopen\(\s*[\"']http)")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "provisioner" / "backends").rglob("*.py")
        for line in path.read_text().splitlines()
        if makers.search(line)
        and "bounded_session(" not in line
        and path.name != Path(client_connections.__file__).name
    ]
    assert found == []
