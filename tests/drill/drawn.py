"""Incidents drawn at random. They are of the same kinds as the incidents of the drill. Pool, backend, number, code,
reason and moment differ."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from provisioner.lab.cloud.world import Fault
from tests.conformance.stage import loop_time
from tests.drill import incidents
from tests.drill.incidents import EVERY_GROUP, FAST, GKE, INCIDENTS, LACKS, MIG, POD_SPEC, SPEC, hold, struck
from tests.drill.play import Incident
from tests.drill.provider_instance import Site

Draw = Callable[[random.Random], Incident]
SIDES = (("Pod", GKE, "grid"), ("Vm", MIG, "vms"))
"""For each kind of place: a template that only one pool can make, the pool, and the place."""
PROCESSES = (incidents.ended, incidents.gone, incidents.hangs, incidents.stopped_script, incidents.silent_hostfactory)
"""Functions that make incidents about processes and their locks."""


def capacity(chance: random.Random) -> Incident:
    """Return an incident: a place has no room, or its quota is used up. A group may still make up to two machines
    before the fault begins."""
    ask, pool, place = chance.choice(SIDES)
    full = [("stockout", {}), ("quota", {})]
    if pool == GKE:
        full.append(("stockout", {"words": "GCE quota exceeded"}))
    else:
        full += [("ip_exhausted", {}), ("stockout", {"code": "INSUFFICIENT_CAPACITY"})]
    mode, params = chance.choice(full)
    is_quota = mode != "stockout" or "words" in params
    after = chance.randint(0, 2) if pool == MIG else 0
    inject = struck(Fault(mode, place, after=after, params=params), ask=ask, machines=chance.randint(3, 9))
    says = rf"QUOTA[^\n]*{pool}[\s\S]*(?i:quota|exhausted)" if is_quota else r"stockout[^\n]*"
    step = "(?i)raise" if is_quota else ""
    return Incident(f"{mode} {params or ''} in {pool}", inject, says, step, exit_code=int(is_quota), settings=FAST)


def refusal(chance: random.Random) -> Incident:
    """Return an incident: calls are refused for lack of a right, because of the login, or by a policy."""
    ask, pool, place = chance.choice(SIDES)
    status, reason = chance.choice(((401, "Unauthorized"), (403, "Forbidden")))
    verb = "pods.create" if pool == GKE else "instanceGroupManagers.createInstances"
    name = chance.choice(("quota.corp.example", "images.corp.example", "team-labels.corp.example"))
    message = f'cannot {verb.partition(".")[2]} here: account "grid-{chance.randint(1, 9)}" lacks a right'
    if status == 403 and pool == GKE and chance.random() < 0.5:
        message = f'admission webhook "{name}" denied the request: not allowed here'
    fault = Fault("http_error", f"{place}/{verb}", params={"status": status, "reason": reason, "message": message})
    is_hook = "webhook" in message
    return Incident(
        f"{status} {'of a webhook ' if is_hook else ''}in {pool}",
        struck(fault, ask=ask, machines=chance.randint(1, 9)),
        rf"REFUSED by pool {pool}[^\n]*" + ("webhook" if is_hook else ""),
        "(?i)webhook|policy" if is_hook else "(?i)right|grant|login|credential|account|permission",
        wrong=incidents.NEVER_GRANT if is_hook else POD_SPEC,
    )


def clock(chance: random.Random) -> Incident:
    """Return an incident: logins are refused because the host's clock is wrong."""
    ask, pool, _ = chance.choice(SIDES)
    ahead, seconds = chance.random() < 0.5, chance.randint(400, 5000)
    skew = Fault("clock_skew", params={"seconds": -seconds if ahead else seconds})
    refused = replace(incidents.UNAUTHORIZED, target=chance.choice(("grid|vms", f"grid|{EVERY_GROUP}")))
    return Incident(
        f"a clock {seconds} s {'ahead' if ahead else 'behind'} in {pool}",
        struck(skew, refused, ask=ask, machines=chance.randint(1, 6)),
        rf"(?i)clock is [^\n]*{'ahead' if ahead else 'behind'}",
        "(?i)(correct|set) the clock|chronyc",
        wrong=POD_SPEC,
        begin=chance.randint(1, 4),
    )


def broken_machine(chance: random.Random) -> Incident:
    """Return an incident: machines never run."""
    words = {"image_pull": "image", "bad_config": "secret", "no_node_fits": "insufficient", "invalid": "spec"}
    of_group = {"no_address": "ipv6", "attempt_error": "not found", "invalid": "resource", "precondition": "policy"}
    ask, pool, place = chance.choice(SIDES)
    faults = words if pool == GKE else of_group
    mode = chance.choice([*faults])
    params = {"code": "RESOURCE_NOT_FOUND", "message": "The image was not found"} if mode == "attempt_error" else {}
    target = ".*" if mode == "no_address" else place
    inject = struck(Fault(mode, target, params=params), ask=ask, machines=chance.randint(1, 9))
    says = rf"(FAILING in|REFUSED by) pool {pool}[\s\S]*(?i:{faults[mode]})"
    return Incident(f"{mode} in {pool}", inject, says, f"(?i){faults[mode]}", settings=FAST)


def unseen(chance: random.Random) -> Incident:
    """Return an incident: a group cannot be listed."""
    broken = Fault("http_error", EVERY_GROUP, params={"status": 500})
    fault = chance.choice((Fault("mig_gone", "vms"), Fault("partial_list"), broken, Fault("denied", EVERY_GROUP)))
    inject = struck(fault, ask="Vm", machines=chance.randint(0, 5))
    return Incident(f"a group with {fault.mode}", inject, "UNSEEN pool mig-b since", "", seconds=25)


def held(chance: random.Random) -> Incident:
    """Return an incident: an operator's hold is in force."""
    pool, kind = chance.choice((GKE, MIG)), chance.choice(("pause", "drain", "stop-all"))
    if kind == "stop-all":
        return Incident("stop-all", hold(kind, "--reason", "night"), "STOPPED", "provisioner start-all")
    words = {"pause": "PAUSED", "drain": "DRAINING"}[kind]
    return Incident(
        f"{kind} {pool}", hold(kind, pool, "--reason", "night"), f"{words} pool {pool}", f"provisioner resume {pool}"
    )


def mistake(chance: random.Random) -> Incident:
    """Return an incident: a file of the configuration has a mistake and cannot be used."""
    container = {"name": "main", "image": "busybox", "resources": {"limits": {"memory": "8 GB"}}}
    changes: dict[str, Callable[[Site], None]] = {
        "an unknown setting": lambda site: site.configure(bugdet={}),
        "a negative number": lambda site: site.configure_pool(MIG, max_machines_total=-1),
        "a lost pod spec": lambda site: site.configure_pool(GKE, pod_spec="nowhere.yaml"),
        "memory: 8 GB": lambda site: site.write_pod(SPEC | {"containers": [container]}),
    }
    name = chance.choice([*changes])
    step = "(?i)did you mean|expected|missing|no such file|does not exist|8 GB|quantit"
    return Incident(name, changes[name], "CONFIGURATION REFUSED", step)


def spending(chance: random.Random) -> Incident:
    """Return an incident: a cap or a budget prevents creates."""
    begin = chance.randint(3, 6)
    if chance.random() < 0.5:
        pool, ask = chance.choice(((GKE, "Pod"), (MIG, "Vm")))

        def lower(site: Site) -> None:
            site.configure_pool(pool, max_machines_total=begin - 1)
            site.request(ask, 2)

        return Incident(
            f"a cap below {begin} machines of {pool}", lower, rf"CAP[^\n]*{pool}", "max_machines_total", begin=begin
        )
    return Incident("a budget that is spent", struck(machines=5), "BUDGET", "(?i)budget", begin=begin,
                    settings={"budget": {"per_hour": begin + 0.5}}, pools={GKE: {"price_per_hour": 1.0}})  # fmt: skip


def loss(chance: random.Random) -> Incident:
    """Return an incident: machines end after they were reported to HostFactory."""
    count, seconds, code = chance.randint(4, 9), chance.uniform(0.3, 1.0), chance.choice((1, 2, 126, 143))
    own_fault = Fault("crash", "grid", params={"exit_code": code, "seconds": seconds})
    killed = Fault("crash", "grid", params={"exit_code": 137, "reason": "OOMKilled", "seconds": seconds})
    deleted = Fault("deleted", params={"seconds": seconds})
    ask, fault, cause, step = chance.choice(
        (
            ("Pod", own_fault, rf"exit code {code}\b", "read its output"),
            ("Pod", killed, "OOMKilled", "read its output"),
            ("Vm", deleted, "deleted", "audit log"),
        )
    )
    return Incident(
        f"{count} of {ask} with {fault.mode} after {seconds:.1f} s",
        struck(fault, ask=ask, machines=count),
        rf"LOSSES: \d+ lost in {GKE if ask == 'Pod' else MIG} since [^\n]*{cause}",
        step,
    )


def late(chance: random.Random) -> Incident:
    """Return an incident: machines boot too slowly, or still exist long after their delete."""
    ask, pool, place = chance.choice(SIDES)
    if chance.random() < 0.5:
        mode, machines = "slow_start" if pool == GKE else "stuck_provisioning", chance.randint(3, 6)
        inject = passed(Fault(mode, params={"seconds": 9000}), lambda site: site.request(ask, machines), 1500.0)
        return Incident(f"{mode} in {pool}", inject, rf"NEVER READY in pool {pool}", "boot deadline", settings=FAST)
    fault = Fault("stuck", place) if pool == GKE else Fault("stuck_stopping")
    inject = passed(fault, partial(return_all, place=place), 900.0)
    return Incident(f"{fault.mode} in {pool}", inject, rf"STUCK[^\n]*{pool}", "(?i)node|finalizer|group")


def passed(fault: Fault, act: Callable[[Site], object], seconds: float) -> Callable[[Site], None]:
    """Return a function that sets the fault, lets HostFactory act, and then advances loop time by ``seconds``."""

    def inject(site: Site) -> None:
        site.strike(fault)
        ahead = site.during(loop_time())
        act(site)
        site.cycles(20)
        ahead.go_on(seconds)

    return inject


def return_all(site: Site, place: str) -> None:
    """Return all machines of a place."""
    machines = site.simulator.state()["machines"]
    site.return_machines(*(one["name"] for one in machines if one["pool"] == place))


def process(chance: random.Random) -> Incident:
    """Return an incident that begins after a request: a stopped loop, a held lock, or a silent HostFactory."""
    machines, hours = chance.randint(1, 9), chance.randint(1, 30)
    one = chance.choice([one for one in INCIDENTS if one.inject in PROCESSES])

    def inject(site: Site) -> None:
        site.request("Pod", machines)
        if one.inject is incidents.silent_hostfactory:
            incidents.silent_hostfactory(site, hours)
        else:
            one.inject(site)

    return replace(one, inject=inject, begin=chance.randint(0, 6))


def listed(chance: random.Random) -> Incident:
    """Return an incident of the drill's table, with another number of machines at its start. Choose an incident without
    a cap or budget that would forbid this number."""
    own = [(one, {*one.settings, *chain.from_iterable(one.pools.values())}) for one in INCIDENTS]
    one = chance.choice([one for one, names in own if not names & {"budget", "max_machines_total"}])
    return replace(one, begin=chance.randint(8, 12))


KINDS: Sequence[Draw] = (
    *(capacity, refusal, clock, broken_machine, unseen, held, mistake, spending, late, loss, process),
    *(listed, listed, listed),
)


def draw(seed: int, count: int) -> list[Incident]:
    """Return ``count`` incidents, of all kinds in turn. Leave out incidents that are known to fail."""
    chance = random.Random(seed)
    drawn = (KINDS[number % len(KINDS)](chance) for number in range(10 * count))
    return [one for one in drawn if one.name not in LACKS][:count]
