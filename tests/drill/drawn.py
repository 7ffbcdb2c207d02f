"""Incidents drawn at random: the kinds of the drill with another pool, backend, number, code, reason and moment."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from provisioner.lab.cloud.world import Fault
from tests.drill import incidents
from tests.drill.incidents import EVERY_GROUP, GKE, INCIDENTS, LACKS, MIG, POD_SPEC, SPEC, hold, struck
from tests.drill.play import Incident
from tests.drill.site import Site

Draw = Callable[[random.Random], Incident]
KINDS_OF_HOLD = ("pause", "stop-all") if "a pool that an operator drains" in LACKS else ("pause", "drain", "stop-all")
SIDES = (("Pod", GKE, "grid"), ("Vm", MIG, "vms"))
"""Templates of one pool, with the pool and its place."""


def capacity(chance: random.Random) -> Incident:
    """Return a stock-out or a quota in either backend."""
    ask, pool, place = chance.choice(SIDES)
    mode = chance.choice(("stockout", "quota"))
    words = r"QUOTA[^\n]*(?i:quota)" if mode == "quota" else r"stockout[^\n]*"
    return Incident(
        f"{mode} in {pool}",
        struck(Fault(mode, place), ask=ask, machines=chance.randint(1, 9)),
        f"{words}",
        "(?i)quota" if mode == "quota" else "",
        exit_code=int(mode == "quota"),
        settings=incidents.FAST,
    )


def refusal(chance: random.Random) -> Incident:
    """Return a refused call: a right, a login, or a policy."""
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


def broken_pod(chance: random.Random) -> Incident:
    """Return pods that never run."""
    words = {"image_pull": "image", "bad_config": "secret", "no_node_fits": "insufficient"}
    mode = chance.choice([*words])
    says = rf"[A-Z]{{4,}}[\s\S]*(?i:{words[mode]})"
    inject = struck(Fault(mode, "grid"), machines=chance.randint(1, 9))
    return Incident(f"pods with {mode}", inject, says, f"(?i){words[mode]}", settings=incidents.FAST)


def unseen(chance: random.Random) -> Incident:
    """Return a group that cannot be listed."""
    broken = Fault("http_error", EVERY_GROUP, params={"status": 500})
    fault = chance.choice((Fault("mig_gone", "vms"), Fault("partial_list"), broken, Fault("denied", EVERY_GROUP)))
    inject = struck(fault, ask="Vm", machines=chance.randint(0, 5))
    return Incident(f"a group with {fault.mode}", inject, "UNSEEN pool mig-b since", "", seconds=25)


def held(chance: random.Random) -> Incident:
    """Return an operator's hold."""
    pool, kind = chance.choice((GKE, MIG)), chance.choice(KINDS_OF_HOLD)
    if kind == "stop-all":
        return Incident("stop-all", hold(kind, "--reason", "night"), "STOPPED", "provisioner start-all")
    words = {"pause": "PAUSED", "drain": "DRAINING"}[kind]
    return Incident(
        f"{kind} {pool}", hold(kind, pool, "--reason", "night"), f"{words} pool {pool}", f"provisioner resume {pool}"
    )


def mistake(chance: random.Random) -> Incident:
    """Return a file that cannot be used."""
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
    """Return a cap or a budget that ends creates."""
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


def listed(chance: random.Random) -> Incident:
    """Return an incident of the table, with another number of machines before."""
    return replace(chance.choice(INCIDENTS), begin=chance.randint(8, 12))


KINDS: Sequence[Draw] = (capacity, refusal, broken_pod, unseen, held, mistake, spending, listed, listed)


def draw(seed: int, count: int) -> list[Incident]:
    """Return incidents of all kinds in turn; those that the table lacks are not drawn again."""
    chance = random.Random(seed)
    drawn = (KINDS[number % len(KINDS)](chance) for number in range(10 * count))
    return [one for one in drawn if one.name not in LACKS][:count]
