"""The incidents of the drill, each as a record."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from provisioner.commands.cli import run
from provisioner.commands.loop_service import Service
from provisioner.hostfactory.script_calls import HostFactory, ScriptFailed
from provisioner.lab.cloud.world import Fault
from provisioner.settings.reload import Configuration
from provisioner.state.directory import StateDir
from tests.conformance.stage import loop_time
from tests.drill.play import Incident
from tests.drill.provider_instance import SPEC, Site
from tests.support.stores import add_request
from tests.support.waiting import until

HOUR = 3600.0
NEVER_GRANT = r"(?i)\bgrant\b"
POD_SPEC = r"pod\.yaml|standard\.yaml|pod spec"
OPERATOR = "OperatorNeeded"


def age(paths: Iterable[Path], seconds: float) -> None:
    """Set the modification times of files back by ``seconds``."""
    then = time.time() - seconds
    for path in paths:
        os.utime(path, (then, then))


def struck(*faults: Fault, ask: str = "Pod", machines: int = 4) -> Callable[[Site], None]:
    """Return a function that sets the faults and then requests machines."""

    def inject(site: Site) -> None:
        site.strike(*faults)
        if machines:
            site.request(ask, machines)

    return inject


# --- the loop, its lock and its directory -----------------------------------------------------------------------------


def another_directory(site: Site) -> None:
    """Start the loop again with another HF_PROVIDER_WORKDIR."""
    site.stop_loop()
    age([site.work / "heartbeat"], 100.0)
    elsewhere = site.work.with_name("elsewhere")
    elsewhere.mkdir()
    configuration = Configuration(site.conf / "provisioner.yaml", site.environment | site.endpoints)
    site.run_service(Service(configuration, StateDir(elsewhere), listen="127.0.0.1:0"))


def ended(site: Site) -> None:
    site.request("Pod", 4)
    site.stop_loop()


HOLDER = (
    "import sys, time; from provisioner.state.directory import StateDir; lock = StateDir({path!r}).loop_lock;"
    "assert lock.acquire(0); lock.raise_epoch(); print('ready', flush=True); {then}"
)


def gone(site: Site) -> None:
    """Replace the loop by a process that gets the loop's lock and then ends without cleaning up, as a killed loop
    does."""
    site.stop_loop()
    site.process(HOLDER.format(path=str(site.work), then="import os; os._exit(9)")).wait()
    age([site.work / "heartbeat"], 100.0)


def hangs(site: Site) -> None:
    """Replace the loop by a process that holds the loop's lock and does nothing."""
    site.stop_loop()
    site.process(HOLDER.format(path=str(site.work), then="time.sleep(600)"))
    age([site.work / "heartbeat", Path(site.state.loop_lock.path)], 100.0)


KEEPER = (
    "import sys; from provisioner.state.locks import DataLock, LockFile, identity; lock = {lock};"
    "assert lock.acquire(); {then} print('ready', flush=True); sys.stdin.read()"
)


def stopped_script(site: Site) -> None:
    """Let a process hold the lock of intent.json. A script that SIGSTOP has stopped has the same effect."""
    site.process(KEEPER.format(lock=f"DataLock({site.state.intent.lock_path!r})", then=""))


def stopped_waiter(site: Site) -> None:
    """Let a process block the queue for the lock of intent.json. A script has the same effect if it is stopped by
    SIGSTOP while it waits."""
    path = f"{site.state.intent.lock_path}.turn"
    site.process(KEEPER.format(lock=f"LockFile({path!r})", then="lock.sign(identity());"))
    age([Path(path)], 30.0)


def broken_scripts(site: Site) -> None:
    """Let HostFactory call the scripts as another provider instance, whose files do not exist."""
    with suppress(ScriptFailed):
        HostFactory(site.environment | {"HF_PROVIDER_NAME": "other"}).request("Pod", 4)


def silent_hostfactory(site: Site, hours: float = 2) -> None:
    """Let HostFactory's last call be ``hours`` old."""
    site.call("getReturnRequests", {"machines": []})
    age([one for one in site.work.rglob("*") if one.is_file() and one.name != "heartbeat"], hours * HOUR)


# --- places -----------------------------------------------------------------------------------------------------------

UNAUTHORIZED = Fault("http_error", "grid|vms", params={"status": 401, "message": "Unauthorized"})
EVERY_GROUP = r"vms|us-central1-a|(instance|Instance)\w*\.\w+"
"""The target of a fault of every call about the group and its instances."""
WEBHOOK = 'admission webhook "policy.bank.example" denied the request: no spot pods'


def identity_conflict(site: Site) -> None:
    """Let the loop run for a minute. Then let a second provisioner with the same id create many machines."""
    site.during(loop_time()).go_on(60.0)
    directory = site.work.with_name("second")
    other = site.during(Site(directory, settings={}, pools={}))
    other.settings["pools"]["gke-main"]["kubeconfig"] = str(site.simulator.kubeconfig)
    other.configure()
    other.start_loop()
    other.complete(25, "Pod")


def orphans(site: Site) -> None:
    """Replace the state directory by an older copy, which lacks the newest request."""
    site.stop_loop()
    saved = {path: path.read_bytes() for path in site.work.iterdir() if path.is_file()}
    site.start_loop()
    site.complete(12, "Pod")
    site.stop_loop()
    for path, content in saved.items():
        path.write_bytes(content)
    site.start_loop()


def cap_below(site: Site) -> None:
    site.configure_pool("gke-main", max_machines_total=2)
    site.request("Pod", 2)


def deleted_by_others(site: Site) -> None:
    """Let the group's instances be deleted, as an autoscaler would delete them."""
    site.strike(Fault("deleted", params={"seconds": 1.0}))
    site.request("Vm", 8)


def stopped_by_others(site: Site) -> None:
    """Stop most of the group's instances, and do not start them again. A schedule or a colleague may do the same."""
    site.complete(8, "Vm")
    site.simulator.call(lambda cloud: [cloud.groups.vms.stop(vm) for vm in [*cloud.groups.vms][:5]])


def vanished(site: Site) -> None:
    """Remove all pods without an event while no loop watches, as if the cluster was restored from an older backup."""
    site.stop_loop()
    store = site.simulator.cloud.cluster.pods
    names = site.pods()
    site.simulator.call(lambda _: [store.remove(found) for name in names if (found := store.get("grid", name))])
    site.start_loop()


def spot_wave(site: Site) -> None:
    """Take back the nodes of Spot pods, as Google does."""
    others = site.pods()
    site.stop_loop()
    site.write_pod(SPEC | {"nodeSelector": {"cloud.google.com/gke-spot": "true"}})
    site.start_loop()
    site.complete(9, "Pod")
    site.simulator.preempt(*(name for name in site.pods() if name not in others))


def other_cluster(site: Site) -> None:
    """Let another cluster answer under the same address."""
    site.simulator.call(lambda cloud: cloud.cluster.stores["namespaces"].put(
        {"metadata": {"name": "grid", "uid": "another", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    ))  # fmt: skip
    site.stop_loop()
    site.start_loop()


def namespace_gone(site: Site) -> None:
    store = site.simulator.cloud.cluster.stores["namespaces"]
    site.simulator.call(lambda _: store.remove(store.get("", "grid")))
    site.request("Pod", 2)


# --- configuration and holds ------------------------------------------------------------------------------------------


def four_cores(site: Site) -> None:
    container = SPEC["containers"][0] | {"resources": {"requests": {"cpu": "4 cores"}}}  # type: ignore[index, operator]
    site.write_pod(SPEC | {"containers": [container]})
    site.request("Pod", 2)


def template_lost(site: Site) -> None:
    """Request machines of a template that the loop's templates file does not have."""
    add_request(site.state, "Lost", 2, created_wall=time.time())


def hold(*words: str) -> Callable[[Site], None]:
    """Return a function that sets an operator's hold and then requests machines."""

    def inject(site: Site) -> None:
        assert run([words[0], "--state-dir", str(site.work), *words[1:]]) == 0
        site.request("Pod", 2)

    return inject


# --- the state directory ----------------------------------------------------------------------------------------------


def memory_missing(site: Site) -> None:
    site.stop_loop()
    (site.work / "memory.json").unlink()
    site.start_loop()


def old_memory(site: Site) -> None:
    site.stop_loop()
    copy = (site.work / "memory.json").read_bytes()
    site.start_loop()
    site.complete(2, "Pod")
    site.stop_loop()
    (site.work / "memory.json").write_bytes(copy)
    site.start_loop()


def full_disk(site: Site) -> None:
    """Let every write to the state directory fail as on a full disk."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    site.during(patch.object(StateDir, "find_write_error", lambda _: full))


def late(site: Site) -> None:
    """Let pods boot for longer than their boot deadline."""
    site.strike(Fault("slow_start", params={"seconds": 600}))
    ahead = site.during(loop_time())
    site.request("Pod", 4)
    until(lambda: len(site.cloud("pending")) >= 4, 20, what="the pods boot")
    ahead.go_on(700.0)


def late_down(site: Site) -> None:
    """Let pods run for more than ten minutes of loop time without being ready."""
    site.strike(Fault("never_ready"))
    ahead = site.during(loop_time())
    site.request("Pod", 4)
    until(lambda: len(site.cloud()) >= 7, 20, what="the pods are there")
    site.cycles(10)
    ahead.go_on(700.0)


def no_json(site: Site) -> None:
    site.templates_file.write_text("{\n")


def stuck(site: Site) -> None:
    """Let pods continue to exist after they were returned and deleted."""
    site.strike(Fault("stuck", "grid"))
    ahead = site.during(loop_time())
    site.return_machines(*site.pods())
    until(lambda: not site.pods(), 20, what="the pods are deleted")
    site.cycles(3)
    ahead.go_on(300.0)


FAST = {"backoff": {"first_seconds": 0.1, "no_room_seconds": 0.2}}
GKE, MIG = "gke-main", "mig-b"

INCIDENTS = (
    Incident(
        "a loop on another state directory",
        another_directory,
        r"LOOP NOT RUNNING[^$]*another state, and a later loop began on /\S*/elsewhere:",
        r"HF_PROVIDER_WORKDIR",
        alert="NotReconciling",
    ),
    Incident(
        "a loop that has ended in order", ended, r"LOOP NOT RUNNING.*ended in order", r"start", alert="InstanceDown"
    ),
    Incident(
        "a loop that was killed",
        gone,
        r"LOOP NOT RUNNING.*process \d+ .*is gone without an orderly end",
        "start",
        alert="InstanceDown",
    ),
    Incident(
        "a loop that hangs",
        hangs,
        r"LOOP NOT RUNNING.*process \d+ .*holds the loop's lock and has done nothing for",
        "end it",
        alert="InstanceDown",
        wrong=r": start `?provisioner run",
    ),
    Incident(
        "a stopped script holds the lock of intent",
        stopped_script,
        r"LOCK of intent\.json[^\n]*process \d+",
        r"(?i)end|kill|process",
        alert=r"OperatorNeeded|.*Lock.*|.*Refused.*",
    ),
    Incident(
        "a stopped script keeps the queue for the lock of intent",
        stopped_waiter,
        r"LOCK of intent\.json[^\n]*intent\.json\.lock\.turn is held[^\n]*process \d+",
        r"(?i)end|kill|process",
        alert=OPERATOR,
    ),
    Incident(
        "scripts that refuse every call",
        broken_scripts,
        r"CALLS REFUSED: the call of requestMachines was refused \d+ times? since[^\n]*other",
        r"otherprov_\w+\.json",
        alert="CallsRefused",
    ),
    Incident(
        "HostFactory is silent",
        silent_hostfactory,
        r"(?i)HostFactory.*(silent|last call|called last)",
        "",
        alert=r".*Silent.*|OperatorNeeded",
    ),
    Incident(
        "the host's clock is off",
        struck(Fault("clock_skew", params={"seconds": 1500}), UNAUTHORIZED, ask="Vm"),
        r"(?i)clock is (1[45]\d\d s|25 min)[^\n]*behind",
        r"(?i)correct the clock|set the clock|chronyc",
        wrong=POD_SPEC,
        alert="CallsDenied|OperatorNeeded",
    ),
    Incident(
        "the host's clock is off, seen by a cluster",
        struck(Fault("clock_skew", params={"seconds": -1500}), UNAUTHORIZED),
        r"(?i)clock is (1[45]\d\d s|25 min)[^\n]*ahead",
        r"(?i)correct the clock|set the clock|chronyc",
        wrong=POD_SPEC,
        alert="CallsDenied|OperatorNeeded",
    ),
    Incident(
        "a login that is refused (401)",
        struck(UNAUTHORIZED),
        "(?i)401|unauthorized",
        "(?i)login|credential|kubeconfig|token",
        wrong=POD_SPEC,
        alert="CallsDenied|OperatorNeeded",
    ),
    Incident(
        "a right that is missing (403)",
        struck(Fault("denied", "grid/pods.create")),
        r"REFUSED[^\n]*cannot create resource",
        "(?i)grant|right|role|account",
        wrong=POD_SPEC,
        alert="CallsDenied|OperatorNeeded",
    ),
    Incident(
        "a group's right that is missing (403)",
        struck(Fault("denied", "vms/instanceGroupManagers.createInstances"), ask="Vm"),
        r"REFUSED[^\n]*",
        "(?i)grant|right|role|permission",
        wrong=POD_SPEC,
        alert="CallsDenied|OperatorNeeded",
    ),
    Incident(
        "a webhook refuses pods",
        struck(
            Fault("http_error", "grid/pods.create", params={"status": 403, "reason": "Forbidden", "message": WEBHOOK})
        ),
        r"REFUSED[^\n]*admission webhook",
        "(?i)webhook|policy",
        wrong=NEVER_GRANT,
        alert="CallsDenied|CapacityRefused|OperatorNeeded",
    ),
    Incident(
        "two provisioners of one id",
        identity_conflict,
        r"BRAKE identity_conflict[^$]*[Aa]nother provisioner",
        "provisioner recover",
        wrong=r"BRAKE too_many_orphans|add --release-brake",
        alert="BrakeEngaged",
    ),
    Incident(
        "a pod that fits no node",
        struck(Fault("no_node_fits", "grid")),
        "(?i)insufficient cpu",
        "(?i)fits no node|NO NODE",
        alert="OperatorNeeded",
        settings=FAST,
    ),
    Incident(
        "a stock-out of a cluster",
        struck(Fault("stockout", "grid")),
        r"stockout[^\n]*FailedScaleUp",
        "",
        exit_code=0,
        alert="CapacityRefused",
        settings=FAST,
    ),
    Incident(
        "a stock-out of a zone",
        struck(Fault("stockout", "vms"), ask="Vm"),
        r"stockout[^\n]*(ZONE_RESOURCE_POOL_EXHAUSTED|enough resources)",
        "",
        exit_code=0,
        alert="CapacityRefused",
        settings=FAST,
    ),
    Incident(
        "cpu: 4 cores",
        four_cores,
        r"CONFIGURATION REFUSED[^$]*cpu",
        r"(?i)4 cores",
        alert="ConfigRefused|OperatorNeeded",
    ),
    Incident(
        "machines that end with a code",
        struck(Fault("crash", "grid", params={"exit_code": 3, "seconds": 0.3}), machines=8),
        r"LOSSES: \d lost in gke-main since [^\n]*exit code 3",
        "(?i)logs",
        alert="LossSpike",
    ),
    Incident(
        "machines that others delete",
        deleted_by_others,
        r"LOSSES: \d lost in mig-b since [^\n]*deleted",
        r"pool mig-b: \d machines [^\n]*deleted by others[^\n]*an autoscaler works on it",
        alert="LossSpike",
        begin=8,
        pools={"cloud": {"mode": "ON"}},
    ),
    Incident(
        "machines that others stop",
        stopped_by_others,
        r"LOSSES: \d lost in mig-b since [^\n]*(TERMINATED|STOPPING)",
        "(?i)audit log for who stops",
        alert=OPERATOR,
    ),
    Incident(
        "an image that does not exist",
        struck(Fault("image_pull", "grid")),
        r"[A-Z]{4,}[^\n]*(?i:image)",
        "(?i)image",
        alert="CapacityRefused|OperatorNeeded",
        settings=FAST,
    ),
    Incident(
        "pods that never get ready",
        late_down,
        r"[A-Z]{4,}[^\n]*(?i:ready)",
        "(?i)readiness|probe|ready",
        alert=OPERATOR,
        settings=FAST,
    ),
    Incident(
        "a quota of the namespace",
        struck(Fault("quota", "grid", params={"limit": 3})),
        r"QUOTA[\s\S]*exceeded quota",
        "(?i)raise|quota",
        alert="CapacityRefused|OperatorNeeded",
        settings=FAST,
    ),
    Incident(
        "a quota of the region",
        struck(Fault("quota", "vms"), ask="Vm"),
        r"QUOTA[^\n]*",
        "(?i)raise|quota",
        alert="CapacityRefused|OperatorNeeded",
        settings=FAST,
    ),
    Incident(
        "a cap below what runs",
        cap_below,
        r"CAP[^\n]*gke-main",
        "(?i)max_machines_total",
        alert="DeferralStuck|OperatorNeeded",
    ),
    Incident(
        "a budget that is spent",
        struck(machines=4),
        r"BUDGET[^\n]*",
        "(?i)budget",
        alert="BudgetNear|OperatorNeeded",
        settings={"budget": {"per_hour": 3.4}},
        pools={GKE: {"price_per_hour": 1.0}},
    ),
    Incident(
        "a pool that is not seen",
        struck(Fault("unavailable", EVERY_GROUP), ask="Vm"),
        r"UNSEEN pool mig-b since",
        "(?i)cannot be (seen|observed)|503|unavailable|check --live",
        alert="PoolBlind|OperatorNeeded",
        seconds=25,
    ),
    Incident(
        "a spill-over that ends at a cap",
        struck(Fault("stockout", "grid"), ask="Either"),
        r"mig-b is at its cap of 3[\s\S]*FailedScaleUp|FailedScaleUp[\s\S]*mig-b is at its cap of 3",
        "",
        exit_code=0,
        alert="CapacityRefused",
        settings=FAST,
        pools={MIG: {"max_machines_total": 3}, GKE: {"spill_after_seconds": 0.5}},
    ),
    Incident(
        "a refused configuration",
        lambda site: site.configure(lop={}),
        r"CONFIGURATION REFUSED[^$]*lop: unknown setting",
        "(?i)did you mean",
        alert="ConfigRefused|OperatorNeeded",
    ),
    Incident(
        "a templates file that is no JSON",
        no_json,
        r"CONFIGURATION REFUSED[^$]*not JSON",
        "(?i)script|HostFactory",
        alert="ConfigRefused|OperatorNeeded",
    ),
    Incident(
        "a pool that an operator has paused",
        hold("pause", GKE, "--reason", "test"),
        r"PAUSED pool gke-main",
        "provisioner resume gke-main",
        alert="DeferralStuck|OperatorNeeded",
    ),
    Incident(
        "a pool that an operator drains",
        hold("drain", GKE, "--reason", "test"),
        r"DRAINING pool gke-main",
        "provisioner resume gke-main",
        alert=OPERATOR,
    ),
    Incident(
        "all is stopped",
        hold("stop-all", "--reason", "test"),
        r"STOPPED: no machine",
        "provisioner start-all",
        alert=OPERATOR,
    ),
    Incident("memory is missing", memory_missing, r"BRAKE memory_lost", "provisioner recover", alert="BrakeEngaged"),
    Incident(
        "an old directory was restored",
        orphans,
        r"BRAKE (too_many_orphans|request_lost|intent_older|identity_conflict)",
        "provisioner recover",
        alert="BrakeEngaged",
    ),
    Incident(
        "an old memory was restored",
        old_memory,
        r"BRAKE memory_older|MEMORY OLD",
        "provisioner recover",
        alert="BrakeEngaged",
    ),
    Incident(
        "all machines of a pool vanish at once",
        vanished,
        r"(\d+) of \1 machines are missing since",
        "",
        begin=12,
        exit_code=0,
        silent="A mass loss",
    ),
    Incident(
        "another cluster answers",
        other_cluster,
        r"BRAKE wrong_endpoint|wrong endpoint|another (cluster|namespace)",
        "(?i)kubeconfig|recover",
        alert="BrakeEngaged|OperatorNeeded",
    ),
    Incident(
        "the disk is full",
        full_disk,
        r"STATE DIRECTORY CANNOT BE WRITTEN: No space",
        "(?i)space|free",
        alert="NotReconciling|OperatorNeeded",
    ),
    Incident(
        "a slow API",
        struck(Fault("hang", "grid", params={"seconds": 3.2})),
        r"calls take \d s",
        "",
        exit_code=0,
        silent="Slow calls",
    ),
    Incident(
        "a group's list that lacks a page",
        struck(Fault("partial_list"), ask="Vm"),
        r"UNSEEN pool mig-b",
        "",
        alert="PoolBlind|OperatorNeeded",
    ),
    Incident(
        "a wave of Spot reclaims",
        spot_wave,
        r"lost in gke-main since [^\n]*preempted",
        "",
        begin=9,
        exit_code=0,
        alert="LossSpike",
    ),
    Incident(
        "a namespace that is missing",
        namespace_gone,
        r"(UNSEEN|REFUSED)[^\n]*(grid|not found)",
        "(?i)not found",
        alert="PoolBlind|OperatorNeeded|CapacityRefused",
    ),
    Incident(
        "a group that is missing",
        struck(Fault("mig_gone", "vms"), ask="Vm"),
        r"UNSEEN pool mig-b[^\n]*there is no group vms",
        "(?i)make the group",
        alert="PoolBlind|OperatorNeeded",
    ),
    Incident(
        "a template that the loop lacks",
        template_lost,
        r"(?i)Lost[^\n]*(unknown|template|no such)",
        "(?i)template",
        alert=OPERATOR,
    ),
    Incident(
        "a boot deadline that is too short",
        late,
        r"boot deadline",
        "(?i)boot_deadline_seconds|boot",
        exit_code=1,
        alert=OPERATOR,
        settings=FAST,
    ),
    Incident(
        "machines that do not end", stuck, r"STUCK", "(?i)node|finalizer|reason", alert="MachinesStuck|OperatorNeeded"
    ),
)
"""Every kind of incident."""

LACKS: dict[str, str] = {}
"""Expectations that the first screen of an incident does not meet yet, by incident."""
UNRUNG: dict[str, str] = {}
"""The incidents for which no alert fires in time yet."""
