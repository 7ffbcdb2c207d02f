"""The gke backend against the simulated API server over HTTP: watches that break, pods that fail, name collisions."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from provisioner.backends import BackendError
from provisioner.backends.concurrency import MOST
from provisioner.backends.gke.api import KubeTimes
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.own_pods import OWN_LABELS, POOL_LABEL, REQUEST_LABEL, SLOT_LABEL, TEMPLATE_LABEL
from provisioner.backends.gke.pod_status import Pod
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.backends.registry import make_backends
from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.kubernetes.kubeconfig import kubeconfig
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.kubernetes.settings import PodTimings
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import Create, Delete, DeleteReason, ErrorClass, LossCause, Machine, MachineEnd, Outcome, Phase
from provisioner.settings.definitions import Settings
from tests.support.clients.wire import Wire
from tests.support.waiting import until

T = TypeVar("T")

NAMESPACE = "symphony"
PODS = PodTimings(
    schedule=(0.01, 0.02),
    start=(0.01, 0.02),
    ready=(0.01, 0.02),
    stop=(0.05, 0.1),
    confirm=(0.01, 0.02),
    reschedule=0.1,
    backoff_first=0.1,
    backoff_last=0.2,
    preempt_grace=5.0,
    node_gone=0.3,
    bookmark=0.2,
)
TIMES = KubeTimes(
    call=20.0, silence=1.0, blind=0.4, first_observation=5.0, stream=30.0, first_retry=0.02, last_retry=0.1
)
SPEC = {"terminationGracePeriodSeconds": 20, "containers": [{"name": "main", "image": "busybox"}]}


def name(number: int) -> str:
    return f"hf-abcdefghij-{number:06d}"


class Bench:
    """The simulator, backends on one of its namespaces, and a wire between them that can fail."""

    def __init__(self, simulator: Simulator, wire: Wire, directory: Path) -> None:
        self.simulator, self.wire, self.directory = simulator, wire, directory
        self.spec = directory / "pod.json"
        self.spec.write_text(json.dumps(SPEC))
        (directory / "kubeconfig").write_text(json.dumps(kubeconfig(wire.address, NAMESPACE, {})))
        self.woken = threading.Event()
        self.times = TIMES
        self._open: list[GkeBackend] = []

    def backend(
        self, provisioner: str = "demo", *, watched: bool = True, namespaces: Namespaces | None = None, **settings: Any
    ) -> GkeBackend:
        """Return a new backend. ``settings``: settings of its pool."""
        fields: dict[str, Any] = {"name": "gke-main", "namespace": NAMESPACE, "pod_spec": self.spec}
        pool = GkePool(**{**fields, "kubeconfig": self.directory / "kubeconfig", **settings})
        backend = GkeBackend(pool, namespaces or Namespaces(self.times), provisioner=provisioner)
        self._open.append(backend)
        if watched:
            backend.start(self.woken.set)
        return backend

    def close(self) -> None:
        for backend in self._open:
            backend.close()

    def cluster(self, act: Callable[[Cluster], T]) -> T:
        """Run ``act`` in the simulator's thread."""
        return self.simulator.call(lambda cloud: act(cloud.cluster))

    def fault(self, *faults: Fault) -> None:
        """Replace all faults of the simulator by these."""
        self.simulator.call(lambda cloud: cloud.impose(Conditions(faults=faults)))

    def pods(self) -> dict[str, Pod]:
        """Return every pod's document, as the server stores it."""
        return self.cluster(lambda cluster: {pod.name: pod.document for pod in cluster.pods.select(NAMESPACE)})

    def unlabel(self, pod: str, label: str) -> None:
        """As another client, remove a label from a pod."""
        document = self.pods()[pod]
        labels = {key: value for key, value in document["metadata"]["labels"].items() if key != label}
        changed = {**document, "metadata": {**document["metadata"], "labels": labels}}

        def act(cluster: Cluster) -> None:
            cluster.update(cluster.get("pods", NAMESPACE, pod), changed, status_only=False)

        self.cluster(act)

    def remove(self, pod: str) -> None:
        """As another client, delete a pod without a grace period."""
        self.cluster(lambda cluster: cluster.delete(cluster.get("pods", NAMESPACE, pod), 0))

    def calls(self, method: str) -> int:
        return self.simulator.call(lambda cloud: cloud.world.calls[method])

    def lists(self) -> int:
        """Return the number of list calls: streamed lists, and pages of other lists."""
        return self.calls("pods.watchlist") + self.calls("pods.list")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Simulator(namespaces=[NAMESPACE, "other"]) as simulator, Wire(simulator.address) as wire:
        simulator.call(lambda cloud: cloud.impose(Conditions(gke=PODS)))
        bench = Bench(simulator, wire, tmp_path)
        yield bench
        bench.close()


def always() -> bool:
    return True


def create(backend: GkeBackend, *numbers: int, template: str = "small") -> list[Outcome]:
    return backend.create([Create(name(n), backend.pool, template, "abcdefghij") for n in numbers], always)


def delete(backend: GkeBackend, number: int, uid: str = "") -> Outcome:
    return backend.delete([Delete(name(number), backend.pool, DeleteReason.RETURNED, uid)], always)[0]


def observe(backend: GkeBackend, now: float = 0.0) -> dict[str, Machine]:
    return dict(backend.observe(now, {}).machines)


def seen(backend: GkeBackend, number: int, phase: Phase = Phase.RUNNING) -> Machine:
    """Wait until an observation shows the machine in this phase. Return the machine."""

    def matching() -> Machine | None:
        machine = observe(backend).get(name(number))
        return machine if machine is not None and machine.phase is phase else None

    machine = until(matching, 20, what=f"{number} is {phase}")
    assert machine is not None
    return machine


def refused(backend: GkeBackend) -> BackendError | None:
    """Observe, and return the error. Return None if the observation succeeds."""
    try:
        observe(backend)
    except BackendError as error:
        return error
    return None


def errors(outcomes: Sequence[Outcome]) -> list[ErrorClass | None]:
    return [outcome.failure.error if outcome.failure else None for outcome in outcomes]


# --- observation ------------------------------------------------------------------------------------------------------


def test_a_quiet_watch_costs_no_list(bench: Bench) -> None:
    backend = bench.backend()
    create(backend, 1)
    seen(backend, 1)
    for _ in range(200):
        observe(backend)
    assert bench.lists() == 1
    assert bench.calls("pods.get") == 0


def test_a_look_says_on_which_list_it_rests(bench: Bench) -> None:
    backend = bench.backend()
    observe(backend, 100.0)
    first = backend.observe(101.0, {}).listed_at
    assert first is not None
    assert first <= 101.0
    assert backend.observe(150.0, {}).listed_at == first, "the watch has gone on from it"
    assert bench.backend(watched=False).observe(101.0, {}).listed_at is None, "without a watch each observation lists"


def place_of(backend: GkeBackend) -> str:
    return backend.observe(time.monotonic(), {}).endpoint_identity


@pytest.mark.parametrize("watched", [True, False])
def test_a_look_says_in_which_of_all_namespaces_of_that_name_it_was_made(bench: Bench, watched: bool) -> None:
    uid = bench.cluster(lambda cluster: cluster.get("namespaces", "", NAMESPACE).uid)
    assert place_of(bench.backend(watched=watched)) == f"namespace {NAMESPACE} (uid {uid})"


def test_without_the_right_to_read_the_namespace_its_identity_is_unknown(bench: Bench) -> None:
    bench.fault(Fault("denied", target="namespaces.get"))
    assert place_of(bench.backend()) == ""


def test_a_namespace_that_cannot_be_read_now_is_a_failed_look_and_read_with_the_next(bench: Bench) -> None:
    bench.fault(Fault("unavailable", target="namespaces.get"))
    backend = bench.backend()
    error = refused(backend)
    assert error is not None
    assert error.failure.error is ErrorClass.UNAVAILABLE
    bench.fault()
    assert place_of(backend).startswith(f"namespace {NAMESPACE} (uid ")


def test_the_namespace_is_read_again_with_each_list_and_with_no_other_look(bench: Bench) -> None:
    backend = bench.backend()
    before = place_of(backend)
    for _ in range(20):
        place_of(backend)
    assert bench.calls("namespaces.get") == 1

    def made_anew(cluster: Cluster) -> None:
        old = cluster.get("namespaces", "", NAMESPACE).document
        cluster.stores["namespaces"].put({**old, "metadata": {**old["metadata"], "uid": "another"}})

    bench.cluster(made_anew)
    assert place_of(backend) == before
    backend.list_after(time.monotonic())
    until(lambda: place_of(backend) == f"namespace {NAMESPACE} (uid another)", 30)


def test_a_list_that_is_wanted_is_made_once_beside_a_watch_that_is_well(bench: Bench) -> None:
    """Even if the watch works, a wanted list must be made, and only once. It must be in pages, which do not depend on
    the watch's stream. The watch must continue."""
    backend = bench.backend()
    create(backend, 1)
    seen(backend, 1)
    backend.list_after(time.monotonic() + 3600.0)
    for _ in range(20):
        observe(backend, time.monotonic())
    assert bench.calls("pods.list") == 0, "its time has not come"
    wanted = time.monotonic()
    backend.list_after(wanted)
    until(lambda: (backend.observe(time.monotonic(), {}).listed_at or 0.0) >= wanted, 30)
    create(backend, 2)
    seen(backend, 2)
    for _ in range(20):
        observe(backend, time.monotonic())
    assert bench.calls("pods.list") == 1


def test_a_list_that_is_wanted_shows_what_the_watch_has_missed(bench: Bench) -> None:
    """A cache may lack pods that exist, for whatever reason. A new list must then add them."""
    backend = bench.backend()
    create(backend, 1, 2)
    seen(backend, 2)
    backend._cache.replace((), "1")
    assert not observe(backend)
    backend.list_after(time.monotonic())
    until(lambda: sorted(observe(backend, time.monotonic())) == [name(1), name(2)], 30)


def test_a_change_wakes_the_loop_at_once(bench: Bench) -> None:
    backend = bench.backend()
    observe(backend)
    bench.woken.clear()
    create(backend, 1)
    until(bench.woken.is_set, 5, what="the loop is woken")


def test_a_create_that_was_accepted_is_in_the_next_look_also_without_a_watch(bench: Bench) -> None:
    bench.times = replace(TIMES, blind=60.0)
    backend = bench.backend()
    observe(backend)
    bench.fault(Fault("hang", target="pods.watch"))
    bench.wire.cut()
    create(backend, 1, 2, 3)
    assert sorted(observe(backend)) == [name(1), name(2), name(3)]


def test_a_watch_that_is_cut_all_the_time_loses_nothing_and_needs_no_list(bench: Bench) -> None:
    backend = bench.backend()
    observe(backend)
    bench.fault(Fault("watch_cut", params={"seconds": 0.1, "abort": True}))
    bench.wire.cut()
    create(backend, *range(1, 31))
    until(lambda: sum(m.phase is Phase.RUNNING for m in observe(backend).values()) == 30, 30)
    until(lambda: bench.calls("pods.watch") > 3, 30)
    assert len(observe(backend)) == 30
    assert bench.lists() == 1


def test_changes_while_versions_expired_are_found_by_the_new_list(bench: Bench) -> None:
    bench.times = replace(TIMES, blind=60.0)
    backend = bench.backend()
    create(backend, 1, 2)
    seen(backend, 1)
    seen(backend, 2)
    bench.wire.down()
    bench.cluster(lambda cluster: cluster.delete(cluster.get("pods", NAMESPACE, name(1)), 0))
    bench.fault(Fault("watch_gone", limit=1))
    bench.wire.fix()
    until(lambda: list(observe(backend)) == [name(2)], 30)
    assert bench.lists() == 2, "the watch had nothing to tell of it"


def test_a_silent_stream_is_dead_and_observations_fail_until_it_is_replaced(bench: Bench) -> None:
    backend = bench.backend()
    create(backend, 1)
    seen(backend, 1)
    bench.wire.block()
    error = until(lambda: refused(backend), 30)
    assert error is not None
    assert error.failure.error is ErrorClass.TIMEOUT
    bench.wire.fix()
    until(lambda: refused(backend) is None, 30)
    assert list(observe(backend)) == [name(1)]
    assert bench.lists() > 1


def test_a_pool_whose_first_list_fails_says_why(bench: Bench) -> None:
    bench.fault(Fault("denied", target="pods.watch"))
    error = refused(bench.backend())
    assert error is not None
    assert error.failure.error is ErrorClass.DENIED
    assert "cannot watch resource" in error.failure.text


def populate(bench: Bench, count: int) -> None:
    """Create pods with our identity directly in the cluster, without calls of the backend."""

    def make(cluster: Cluster) -> None:
        for number in range(count):
            labels = {"id": "demo", "pool": "gke-main", "request": "abcdefghij", "slot": f"{number:06d}"}
            metadata = {"name": name(number), "labels": {f"hf-provisioner/{key}": v for key, v in labels.items()}}
            cluster.create(NAMESPACE, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": SPEC})

    bench.cluster(make)


def test_a_watched_pool_has_its_list_streamed(bench: Bench) -> None:
    populate(bench, 1100)
    assert len(observe(bench.backend())) == 1100
    assert (bench.calls("pods.watchlist"), bench.calls("pods.watch"), bench.calls("pods.list")) == (1, 0, 0)


def test_closing_ends_a_quiet_watch_at_once(bench: Bench) -> None:
    bench.simulator.call(lambda cloud: cloud.impose(Conditions(gke=replace(PODS, bookmark=60.0))))
    bench.times = replace(TIMES, silence=60.0)
    backend = running_pod(bench)
    backend.close()
    assert watching() == 0, "it would have been silent for a minute"


def watching() -> int:
    """Return the number of running watches."""
    return sum(thread.name == f"watch {NAMESPACE}" for thread in threading.enumerate())


# --- pools with something in common -----------------------------------------------------------------------------------


def shared(bench: Bench, *pools: str, **settings: Any) -> list[GkeBackend]:
    """Return backends of several pools of one configuration. They do not watch before ``start``."""
    namespaces = Namespaces(bench.times)
    return [bench.backend(name=pool, watched=False, namespaces=namespaces, **settings) for pool in pools]


def test_pools_of_one_namespace_share_one_watch_and_see_their_own(bench: Bench) -> None:
    first, second = shared(bench, "gke-main", "gke-spot")
    create(second, 1)
    woken = threading.Event()
    first.start(bench.woken.set)
    second.start(woken.set)
    assert (list(observe(first)), list(observe(second))) == ([], [name(1)])
    bench.woken.clear()
    create(first, 2)
    until(bench.woken.is_set, 5, what="the loop is woken")
    seen(first, 2)
    seen(second, 1)
    woken.clear()
    create(second, 3)
    until(woken.is_set, 5, what="the loop is woken")
    seen(second, 3)
    assert (list(observe(first)), sorted(observe(second))) == ([name(2)], [name(1), name(3)])
    assert (bench.calls("pods.watchlist"), bench.calls("pods.list"), watching()) == (1, 0, 1)


def test_the_last_pool_that_is_closed_ends_the_watch(bench: Bench) -> None:
    first, second = shared(bench, "gke-main", "gke-spot")
    for backend in (first, second):
        backend.start(lambda: None)
    observe(first)
    first.close()
    create(second, 1)
    seen(second, 1)
    assert watching() == 1
    second.close()
    assert watching() == 0


def test_pools_of_other_namespaces_and_provisioners_have_their_own_watch(bench: Bench) -> None:
    namespaces = Namespaces(bench.times)
    backends = [
        bench.backend(namespaces=namespaces),
        bench.backend(namespaces=namespaces, namespace="other"),
        bench.backend("another", namespaces=namespaces),
    ]
    for backend in backends:
        create(backend, 1)
    for backend in backends[:2]:
        seen(backend, 1)
    assert observe(backends[2]) == {}, "the name was taken"
    assert bench.calls("pods.watchlist") == 3


def test_a_pool_that_comes_after_the_watch_began_is_seen_completely(bench: Bench) -> None:
    namespaces = Namespaces(bench.times)
    first = bench.backend(namespaces=namespaces)
    create(bench.backend(name="gke-spot", watched=False), 1)
    observe(first)
    late = bench.backend(name="gke-spot", namespaces=namespaces)
    assert list(observe(late)) == [name(1)]


def test_a_cluster_that_streams_no_lists_is_asked_once_for_all_its_namespaces(bench: Bench) -> None:
    bench.fault(Fault("no_watchlist"))
    namespaces = Namespaces(bench.times)
    for namespace in (NAMESPACE, "other"):
        observe(bench.backend(namespaces=namespaces, namespace=namespace))
    assert bench.calls("pods.watchlist") == 1


def test_the_pools_of_a_configuration_share_their_cluster(bench: Bench) -> None:
    pools = {
        name: GkePool(name=name, namespace=NAMESPACE, pod_spec=bench.spec, kubeconfig=bench.directory / "kubeconfig")
        for name in ("gke-main", "gke-spot")
    }
    settings = Settings(id="demo", pools=pools, template_limits={})
    backends = make_backends(settings.pools, settings.site)
    try:
        for backend in backends.values():
            backend.start(lambda: None)
        for backend in backends.values():
            assert backend.observe(0.0, {}).machines == {}
        assert bench.calls("pods.watchlist") == 1
    finally:
        for backend in backends.values():
            backend.close()


# --- what pods say ----------------------------------------------------------------------------------------------------


def running_pod(bench: Bench) -> GkeBackend:
    backend = bench.backend()
    create(backend, 1)
    seen(backend, 1)
    return backend


def test_a_preempted_pod_is_announced_with_the_seconds_left(bench: Bench) -> None:
    bench.spec.write_text(json.dumps({**SPEC, "tolerations": [{"key": "cloud.google.com/gke-spot"}]}))
    bench.fault(Fault("spot_node"))
    backend = running_pod(bench)
    assert bench.simulator.preempt(name(1)) == [name(1)]
    machine = seen(backend, 1, Phase.STOPPING)
    assert machine.cause is LossCause.PREEMPTED
    assert machine.notice is not None
    assert machine.notice.cause is LossCause.PREEMPTED
    assert 0 < machine.notice.ends_at <= 5.0


def test_a_pod_that_another_client_deletes_is_announced_and_then_absent(bench: Bench) -> None:
    backend = running_pod(bench)
    bench.simulator.call(lambda cloud: cloud.impose(Conditions(gke=replace(PODS, stop=(20.0, 20.0)))))
    bench.cluster(lambda cluster: cluster.delete(cluster.get("pods", NAMESPACE, name(1))))
    machine = seen(backend, 1, Phase.STOPPING)
    assert machine.cause is LossCause.DELETED
    assert machine.notice is not None
    assert 10.0 < machine.notice.ends_at <= 20.0
    bench.cluster(lambda cluster: cluster.delete(cluster.get("pods", NAMESPACE, name(1)), 0))
    until(lambda: not observe(backend), 30)


def test_a_notice_in_loop_time_counts_from_when_it_came(bench: Bench) -> None:
    backend = running_pod(bench)
    bench.simulator.preempt(name(1))
    until(lambda: observe(backend, 1000.0)[name(1)].notice, 30)
    notice = observe(backend, 1000.0)[name(1)].notice
    assert notice is not None
    assert 1000.0 < notice.ends_at <= 1005.0
    assert observe(backend, 1001.0)[name(1)].notice is notice


def test_with_require_dns_a_pod_whose_name_does_not_resolve_does_not_run(bench: Bench) -> None:
    backend = bench.backend(require_dns=True)
    create(backend, 1)

    def unresolved() -> bool:
        machine = observe(backend)[name(1)]
        return machine.failure is not None and machine.failure.text == "its name does not resolve yet"

    until(unresolved, 20, what="the name is asked for")
    assert observe(backend)[name(1)].phase is Phase.PENDING


# --- creates ----------------------------------------------------------------------------------------------------------


def test_the_pod_is_the_users_with_our_name_and_labels(bench: Bench) -> None:
    create(bench.backend(), 7, template="Big one")
    pod = bench.pods()[name(7)]
    assert pod["metadata"]["labels"] == {
        "hf-provisioner/id": "demo",
        "hf-provisioner/pool": "gke-main",
        "hf-provisioner/request": "abcdefghij",
        "hf-provisioner/template": "Big_one",
        "hf-provisioner/slot": "000007",
    }
    assert pod["spec"]["hostname"] == name(7)
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 20


def test_a_new_pod_spec_is_used_and_seen_without_a_restart(bench: Bench) -> None:
    backend = bench.backend()
    before = backend.observe(0.0, {}).spec
    bench.spec.write_text(json.dumps({"containers": [{"name": "main", "image": "alpine"}]}))
    assert backend.observe(0.0, {}).spec != before
    create(backend, 1)
    assert bench.pods()[name(1)]["spec"]["containers"][0]["image"] == "alpine"


def test_with_a_quota_of_50_exactly_50_are_made_and_few_are_refused(bench: Bench) -> None:
    bench.fault(Fault("quota", params={"limit": 50}))
    backend = bench.backend()
    outcomes = create(backend, *range(100))
    assert errors(outcomes).count(None) == 50
    assert 1 <= errors(outcomes).count(ErrorClass.QUOTA) <= MOST
    assert set(errors(outcomes)) == {None, ErrorClass.QUOTA}
    assert "exceeded quota" in next(outcome.failure.text for outcome in outcomes if outcome.failure)
    assert errors(create(backend, 100)) == [ErrorClass.QUOTA]


def test_a_throttled_create_says_how_long_the_server_wants_to_be_left_alone(bench: Bench) -> None:
    bench.fault(Fault("throttled", target="pods.create", params={"seconds": 7}))
    (outcome,) = create(bench.backend(), 1)
    assert outcome.failure is not None
    assert outcome.failure.error is ErrorClass.THROTTLED
    assert "retry after 7 s" in outcome.failure.text


def test_once_the_server_asks_for_quiet_nothing_is_sent_until_then(bench: Bench) -> None:
    bench.fault(Fault("throttled", target="pods.create", after=30, limit=1, params={"seconds": 1}))
    backend = bench.backend()
    outcomes = create(backend, *range(100))
    assert errors(outcomes).count(ErrorClass.THROTTLED) == 1
    assert 30 <= errors(outcomes).count(None) <= 30 + MOST
    assert [outcome.retry_after for outcome in outcomes if outcome.failure] == [1.0]
    assert create(backend, 100) == [], "not sent: no outcome"
    calls = bench.calls("pods.create")
    outcome = until(lambda: create(backend, 100), 5, every=0.05)[0]
    assert (outcome.failure, bench.calls("pods.create")) == (None, calls + 1)


def foreign(bench: Bench, number: int, labels: dict[str, str] | None = None) -> None:
    metadata = {"name": name(number), "labels": labels or {}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": SPEC}
    bench.cluster(lambda cluster: cluster.create(NAMESPACE, pod))


def test_a_name_taken_by_a_foreign_pod_fails_that_create_alone(bench: Bench) -> None:
    foreign(bench, 1)
    before = bench.pods()[name(1)]["metadata"]["uid"]
    backend = bench.backend()
    outcomes = create(backend, 1, 2)
    assert errors(outcomes) == [ErrorClass.OTHER, None]
    assert outcomes[0].failure is not None
    assert "is not ours" in outcomes[0].failure.text
    delete(backend, 1)
    assert bench.pods()[name(1)]["metadata"]["uid"] == before
    assert "deletionTimestamp" not in bench.pods()[name(1)]["metadata"]


def test_a_pod_of_this_slot_that_is_being_deleted_is_no_success(bench: Bench) -> None:
    backend = running_pod(bench)
    bench.fault(Fault("stuck"))
    delete(backend, 1)
    (outcome,) = create(backend, 1)
    assert outcome.failure is not None
    assert "is being deleted" in outcome.failure.text
    assert seen(backend, 1, Phase.STOPPING).cause is LossCause.DELETED


@pytest.mark.parametrize("host", ["..", "web/log", "web?watch=1", ""])
def test_a_host_whose_name_no_pod_can_have_is_not_asked_for(bench: Bench, host: str) -> None:
    backend = bench.backend()
    observe(backend)
    before = bench.calls("pods.get") + bench.lists()
    assert backend.observe(0.0, dict.fromkeys([host], "")).foreign == frozenset()
    assert bench.calls("pods.get") + bench.lists() == before


def test_two_provisioners_in_one_namespace_never_touch_each_other(bench: Bench) -> None:
    ours, theirs = bench.backend("demo"), bench.backend("other")
    create(ours, 1)
    create(theirs, 2)
    assert list(observe(ours)) == [name(1)]
    assert list(observe(theirs)) == [name(2)]
    assert errors(create(theirs, 1)) == [ErrorClass.OTHER]
    delete(theirs, 1)
    assert "deletionTimestamp" not in bench.pods()[name(1)]["metadata"]
    assert ours.observe(0.0, dict.fromkeys([name(1), name(2), name(3)], "")).foreign == {name(2)}


def test_a_single_pod_that_the_server_does_not_tell_of_fails_the_look(bench: Bench) -> None:
    """An observation must fail if a part of it fails. Here the list succeeds. But the backend reads a missing pod by a
    separate call, which the server refuses."""
    backend = bench.backend()
    observe(backend)
    foreign(bench, 1)
    bench.fault(Fault("denied", target="pods.get"))
    with pytest.raises(BackendError):
        backend.observe(0.0, dict.fromkeys([name(1), name(2)], ""))
    assert observe(backend) == {}
    bench.fault()
    assert backend.observe(0.0, dict.fromkeys([name(1), name(2)], "")).foreign == {name(1)}


def test_pools_of_one_server_list_unknown_pods_together_no_faster_than_it_bears(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.times = replace(TIMES, silence=30.0)
    shared = Namespaces(bench.times)
    pools = [bench.backend(name=f"pool-{number}", watched=False, namespaces=shared) for number in range(5)]
    for pool in pools:
        pool.start(bench.woken.set)
        observe(pool)
    foreign(bench, 1)
    names = [name(number) for number in range(2 * MOST)]
    others = bench.wire.connections()
    bench.wire.block()
    with ThreadPoolExecutor(len(pools)) as observers:
        observations = [observers.submit(pool.observe, 0.0, dict.fromkeys(names, "")) for pool in pools]
        until(lambda: bench.wire.connections() >= MOST, 30)
        under_way = bench.wire.connections() - others
        bench.wire.fix()
    assert under_way <= MOST
    assert [snapshot.result().foreign for snapshot in observations] == [{name(1)}] * len(pools)
    assert caplog.messages == []


def test_a_pod_of_an_unknown_pool_is_not_gone(bench: Bench) -> None:
    """A pod of our name whose label names an unknown pool is a name collision. Only the pod's own pool may delete the
    pod, and its loss must not be reported to HostFactory."""
    create(bench.backend(name="former"), 1)
    asked = bench.backend().observe(0.0, dict.fromkeys([name(1)], ""))
    assert (asked.foreign, asked.name_collisions) == (frozenset(), {name(1)})


# --- pods without our labels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({}, "metadata.labels.hf-provisioner/id is gone", id="all labels"),
        pytest.param({"labels": {POOL_LABEL: None}}, f"metadata.labels.{POOL_LABEL} is gone", id="one label"),
        pytest.param({"labels": {SLOT_LABEL: "9"}}, f"metadata.labels.{SLOT_LABEL} is 9", id="another value"),
        pytest.param(
            {"labels": {}, "spec": {"restartPolicy": "Always"}}, "spec.restartPolicy is Always", id="restarts"
        ),
    ],
)
def test_a_pod_that_is_made_otherwise_than_asked_for_is_deleted_at_once_and_fails(
    bench: Bench, changes: dict[str, object], message: str
) -> None:
    backend = bench.backend()
    bench.fault(Fault("altered", params=changes))
    (outcome,) = create(backend, 1)
    assert outcome.failure is not None
    assert (outcome.failure.error, message in outcome.failure.text) == (ErrorClass.INVALID, True)
    assert all("deletionTimestamp" in pod["metadata"] for pod in bench.pods().values())
    assert [message in finding.text for finding in backend.rehearse("T")] == [True]
    bench.fault()
    assert backend.rehearse("T") == []


def test_one_that_cannot_be_deleted_is_found_by_its_name_and_by_who_made_it(bench: Bench) -> None:
    backend = bench.backend()
    bench.fault(Fault("altered"), Fault("denied", target="pods.delete"))
    assert errors(create(backend, 1)) == [ErrorClass.INVALID]
    foreign(bench, 2)
    asked = backend.observe(0.0, {name(1): "", name(2): ""})
    assert [one.name for one in asked.machines.values() if one.is_strayed] == [name(1)]
    assert asked.foreign == {name(2)}
    assert "run on without our labels" in asked.problems[0]
    bench.fault()
    delete(backend, 1, asked.machines[name(1)].fingerprint.uid)
    until(lambda: name(1) not in bench.pods(), 30)


@pytest.mark.parametrize("label", sorted(OWN_LABELS))
def test_a_pod_that_loses_a_label_is_not_gone(bench: Bench, label: str) -> None:
    backend = running_pod(bench)
    uid = observe(backend)[name(1)].fingerprint.uid
    bench.unlabel(name(1), label)
    until(lambda: observe(backend) == {} or label in (REQUEST_LABEL, TEMPLATE_LABEL), 30)
    asked = backend.observe(0.0, {name(1): uid})
    assert (asked.machines[name(1)].phase, asked.ends.get(name(1))) in (
        (Phase.RUNNING, None),
        (Phase.RUNNING, MachineEnd()),
    )
    assert backend.observe(0.0, {name(1): uid}).machines is asked.machines, "nothing has changed"
    assert backend.observe(0.0, {name(1): "another"}).machines.get(name(1)) is None or label == TEMPLATE_LABEL


def test_a_pod_that_was_deleted_without_grace_is_gone_once_its_name_was_asked_for(bench: Bench) -> None:
    backend = running_pod(bench)
    bench.remove(name(1))
    until(lambda: observe(backend) == {}, 30)
    assert backend.observe(0.0, {name(1): ""}).ends == {name(1): MachineEnd(LossCause.DELETED)}


# --- deletes ----------------------------------------------------------------------------------------------------------


def test_a_delete_leaves_the_pod_its_own_grace(bench: Bench) -> None:
    backend = running_pod(bench)
    bench.fault(Fault("stuck"))
    assert delete(backend, 1, observe(backend)[name(1)].fingerprint.uid).failure is None
    assert bench.pods()[name(1)]["metadata"]["deletionGracePeriodSeconds"] == 20


def test_a_stuck_pod_says_when_its_grace_ended_and_goes_by_force(bench: Bench) -> None:
    bench.spec.write_text(json.dumps({**SPEC, "terminationGracePeriodSeconds": 1}))
    backend = running_pod(bench)
    bench.fault(Fault("stuck"))
    uid = observe(backend)[name(1)].fingerprint.uid
    delete(backend, 1, uid)
    ends = seen(backend, 1, Phase.STOPPING).notice
    assert ends is not None
    assert ends.ends_at <= 1.0
    assert delete(backend, 1, uid).failure is None
    assert observe(backend)[name(1)].phase is Phase.STOPPING
    forced = Delete(name(1), "gke-main", DeleteReason.RETURNED, uid, is_forced=True)
    assert errors(backend.delete([forced], lambda: True)) == [None]
    until(lambda: not observe(backend), 30)


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_an_action_whose_response_is_lost_is_not_sent_again_by_itself(bench: Bench, verb: str) -> None:
    backend = running_pod(bench)
    uid = observe(backend)[name(1)].fingerprint.uid
    before = bench.calls(f"pods.{verb}")
    bench.fault(Fault("lost_response", target=f"pods.{verb}"))
    outcomes = create(backend, 2) if verb == "create" else [delete(backend, 1, uid)]
    assert errors(outcomes) == [ErrorClass.UNAVAILABLE]
    assert bench.calls(f"pods.{verb}") == before + 1


def test_connections_that_were_closed_while_they_were_idle_are_replaced_unnoticed(bench: Bench) -> None:
    backend = bench.backend(watched=False)
    assert errors(create(backend, *range(40))) == [None] * 40
    bench.wire.cut()
    assert errors(create(backend, *range(40, 80))) == [None] * 40
    assert bench.calls("pods.create") == 80


# --- the way to a cluster ---------------------------------------------------------------------------------------------


def test_a_context_that_is_not_there_is_a_mistake_of_the_configuration(bench: Bench) -> None:
    with pytest.raises(BackendError, match="nowhere") as caught:
        bench.backend(context="nowhere")
    assert caught.value.failure.error is ErrorClass.INVALID


def test_the_context_picks_the_cluster(bench: Bench) -> None:
    document = kubeconfig("http://127.0.0.1:1", NAMESPACE, {})
    document["clusters"].append({"name": "near", "cluster": {"server": bench.wire.address}})
    document["contexts"].append({"name": "near", "context": {"cluster": "near", "user": document["users"][0]["name"]}})
    (bench.directory / "kubeconfig").write_text(json.dumps(document))
    assert observe(bench.backend(context="near", watched=False)) == {}
