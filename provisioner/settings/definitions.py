"""Every setting of provisioner.yaml as a type, with default, unit and reason.

The type of a setting contains its check and the description of valid values. No I/O, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import Field, StringConstraints

from provisioner import model
from provisioner.hostfactory.provider_config import Digests
from provisioner.hostfactory.shards import Shards, find_shard, shard_instance
from provisioner.model import HOUR, Limits, OrphanLimits, TemplateLimits
from provisioner.names import MAX_PREFIX_LENGTH
from provisioner.schema.setting_types import (
    Compute,
    Duration,
    DurationOrZero,
    Label,
    OptionalCarriedFile,
    OptionalFile,
    OptionalSecretFile,
    PlaceName,
    Pool,
    Price,
    Share,
    Site,
    Text,
)
from provisioner.schema.validation import Expects, Section

Amount = Annotated[float | None, Field(gt=0), Expects("a number > 0")]
CountOrZero = Annotated[int, Field(ge=0), Expects("a whole number ≥ 0")]
Interval = Annotated[float, Field(gt=0, le=15), Expects("a number > 0, at most 15")]
UsageDays = Annotated[int, Field(ge=32, le=3660), Expects("a whole number from 32 to 3660")]
UnlistedHours = Annotated[float | None, Field(ge=1), Expects("a number ≥ 1")]
Prefix = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=MAX_PREFIX_LENGTH),
    Expects(f"a lower-case letter, then letters, digits or '-', not ending in '-', at most {MAX_PREFIX_LENGTH} in all"),
]
AdoptPrefixes = Annotated[
    tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][-a-z0-9]*$")], ...],
    Field(strict=False),
    Expects("a list of name prefixes such as [sym-]"),
]
Listen = Annotated[
    str,
    StringConstraints(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$"),
    Expects("HOST:PORT such as 127.0.0.1:9464"),
]


class Loop(Section):
    """The pace of the loop."""

    interval_seconds: Interval = 5.0
    """Seconds between two cycles if no event starts one earlier. If an event is lost, the loop sees the change after
    this time. At most 15, because a loop whose last cycle ended a minute ago counts as dead. Default 5."""
    floor_seconds: DurationOrZero = 0.5
    """Minimum seconds between two cycles, so that one cycle handles several changes. Default 0.5."""
    act_seconds: Duration = 2.0
    """Seconds of a cycle after which the loop starts no further call to a cloud. The next cycle plans the remaining
    actions again. Default 2."""
    intent_poll_seconds: Duration = 0.1
    """Seconds between two checks whether the scripts have changed intent.json. The loop polls because NFS sends no
    notification of a change. Default 0.1."""


class Backoff(Section):
    """Delays before a pool that refuses machines is tried again."""

    first_seconds: Duration = 5.0
    """Seconds from a refused create until the loop creates one machine, the probe. Each further refusal doubles this
    time, with jitter. Default 5."""
    last_seconds: Duration = 1800.0
    """Maximum seconds between two probes. With the default, a pool whose machines fail gets about fifty probes a day.
    Default 1800."""
    no_room_seconds: Duration = 180.0
    """Maximum seconds between two probes of a pool that has no room (stock-out, quota). Lower than ``last_seconds``,
    because such a probe costs only one call, and the loop should find free capacity within minutes. Default 180."""


class Events(Section):
    """Pub/Sub messages that wake the loop and announce preemptions. The messages are hints, so losing them all loses no
    machine."""

    project: PlaceName
    """Google Cloud project of the subscription. No default."""
    subscription: Text
    """Name of the subscription, without ``projects/…``. Each provisioner needs its own subscription, because a message
    reaches only one reader of a subscription. No default."""


class Budget(Section):
    """Limits on the cost of all machines together, by ``price_per_hour`` of their templates and pools. Once a budget is
    used up, the loop creates no more machines (reason ``budget``); existing machines are never deleted because of a
    budget."""

    per_hour: Amount = None
    """Maximum cost per hour of all machines that exist or are being created. The loop defers further creates. Default
    no limit."""
    per_month: Amount = None
    """Maximum cost in a calendar month (UTC). Once the month has cost this much, the loop creates no machine with a
    price until the next month. Running machines continue, so the month may cost more. If memory.json is lost, earlier
    costs of the month are not counted. Default no limit."""
    currency: Text = "USD"
    """Currency of prices and budgets. It is only shown; the loop converts no amounts. Default USD."""


class Server(Section):
    """Access to metrics, health and status page. Reading changes no state. The pages name machines, addresses and
    requests; they contain no secret and no pod spec."""

    token_file: OptionalSecretFile = None
    """File that contains a token, on one line. A client sends the token as ``Authorization: Bearer TOKEN`` to read the
    pages. The loop reads the file again when it changes. Without the token, ``/healthz`` and ``/readyz`` still
    respond with a status code, because a platform's probes have no token. Default none: everyone who reaches ``listen``
    can read the pages."""
    tls_cert: OptionalFile = None
    """File with the server's certificate and its chain (PEM). Needs ``tls_key``. A renewed certificate is used without
    a restart. Default none: the server does not use TLS, so the token can be read on the network."""
    tls_key: OptionalSecretFile = None
    """File with the private key of ``tls_cert`` (PEM), without a passphrase. Default none."""


class TemplateSettings(Section):
    """Settings of the requests for machines of one template."""

    straggler_seconds: DurationOrZero = 180.0
    """Seconds without progress after which a request ends early, once most of its machines run (``straggler_share``).
    Its other machines then fail. Progress means that a machine starts to run, is created or fails. With 0, all machines
    may boot until the request's deadline. Default 180.

    HF uses no machine of a request before the request ends, so one machine that never boots would hold back all running
    machines. A machine that boots after the end of its request is deleted.
    """
    straggler_share: Share = 0.9
    """Share of a request's machines that must run before ``straggler_seconds`` applies. In a request for fewer than ten
    machines, 0.9 means all machines, so ``straggler_seconds`` has no effect: set a lower share if requests are small.
    Default 0.9."""

    tries: CountOrZero = 3
    """Maximum number of failed tries for a wanted machine. Then the machine fails, with the reason of the last try.
    With 0, the loop tries until the request ends (by its deadline, or by ``straggler_seconds``). Default 3.

    A try fails if the create is refused for good, the machine does not boot, or it dies before its request ends. A
    stock-out, a quota, a call that is throttled or gets no response, and a change to another pool do not count.
    """
    max_lifetime_seconds: Amount = None
    """Seconds that a machine runs until getReturnRequests names it as ``aged``, with an hour of grace. HF then returns
    the machine, and a new machine uses the present image. The loop deletes a machine only when HF returns it. Default
    none: machines never age.

    At most a tenth of the template's machines (but at least one) is named at a time. While no pool of the template can
    replace a machine (each is paused, unreachable or backing off), one machine is named, or none if a request waits for
    machines. If you remove this setting, machines that were named stay named.
    """
    price_per_hour: Price = None
    """Cost of a machine of this template per hour, in any pool. For templates that share a pool and whose machines
    differ in size. Default the pool's ``price_per_hour``."""

    def limits(self, id_: str, pools: tuple[str, ...], max_machines: int | None) -> TemplateLimits:
        """Return the limits of the template for the plan; id, pools and cap come from HF's templates file."""
        given = {"id": id_, "pools": pools, "max_machines": max_machines}
        return self.as_limits(TemplateLimits, straggler_after_seconds=self.straggler_seconds, **given)


SECTIONS: Mapping[str, type[Section]] = {
    "loop": Loop,
    "backoff": Backoff,
    "budget": Budget,
    "compute": Compute,
    "events": Events,
    "server": Server,
}


class Settings(Section):
    """The whole configuration. Relative paths in the file start at the directory of the file."""

    id: Label
    """The provisioner's id. Pods carry the id as a label. Two provisioners that share a namespace need different ids.
    Default ``HF_PROVIDER_NAME``."""
    name_prefix: Prefix = "hf"
    """First part of machine names. Two provisioners that share a managed instance group need different prefixes.
    Default ``GCP_INSTANCE_PREFIX`` of HF's provider config, else hf."""
    request_deadline_minutes: Duration = 60.0
    """Minutes after which a request ends and its missing machines fail. Before this deadline HF counts the missing
    machines as supply, and requests no others instead. Default 60."""
    return_deadline_minutes: Duration = 60.0
    """Minutes after which a return request ends with an error if one of its machines may still exist. Default 60."""
    orphan_grace_minutes: Duration = 10.0
    """Minutes for which the loop observes an orphan (a machine of this provisioner without a request) before it deletes
    the orphan, so that an operator can notice a mistake. Default 10."""
    orphan_cap_per_hour: CountOrZero = 20
    """Maximum number of orphans that the loop deletes per hour. This cap limits the damage if wrong state files make
    good machines seem to be orphans. With 0, the loop deletes no orphans. Default 20."""
    cancel_after_minutes: Duration = 30.0
    """If HF makes other calls for this many minutes without polling a request, the loop cancels the request. After five
    minutes without any call of HF, the count of minutes starts again. Default 30."""
    retention_hours: DurationOrZero = 24.0
    """Hours for which a request stays in the state files after HF has read that it ended, because HF may poll the
    request again. Default 24."""
    delete_unlisted_after_hours: UnlistedHours = None
    """Hours for which HF's lists of hosts must not have named a reported machine. The loop then deletes it as an
    orphan. The cap and the brake of orphans apply. At least 1, because HF may send a list in parts. Use this only if
    HF calls getReturnRequests with all its hosts. Default none: status only shows the machine."""
    adopt_prefixes: AdoptPrefixes = ()
    """Name prefixes of another provider's machines that the loop deletes if HF returns them. Use this for a migration.
    Google's connector names instances ``sym-…`` and pods ``g<uuid>-…-pod-<n>``. Default none.

    Let the connector's operator run until its last pod is gone, because only the operator removes the finalizer of a
    deleted pod. The operator does not make deleted pods again.
    """
    usage_days: UsageDays = 92
    """Days for which machine-hours are kept for `provisioner usage`. At least 32, because the cost of a whole month is
    computed from these days. Each day adds a line to memory.json per template, pool and account. Default 92, about a
    quarter of a year."""
    loop: Loop = Loop()
    """The pace of the loop."""
    backoff: Backoff = Backoff()
    """Delays before a pool that refuses machines is tried again."""
    budget: Budget = Budget()
    """Limits on the cost of machines; default no limit."""
    compute: Compute = Compute()
    """Use of the Compute Engine API."""
    ca_bundle: OptionalCarriedFile = None
    """File with the certificate authorities (PEM) that every client trusts instead of the system's. For proxies that
    decrypt TLS, or endpoints with private certificates. Default ``REQUESTS_CA_BUNDLE``, else the system's.

    The file must contain every authority in use, including the public ones. A cluster's own authority (``ca_file``,
    kubeconfig) takes precedence for that cluster. The path is read at the start; the file may be replaced at any time.
    """
    listen: Listen = "127.0.0.1:9464"
    """Address of metrics, health and status page. Port 0 uses a free port. If the address is not the loopback, everyone
    who reaches the address can read the pages, unless ``server`` has a token. Default 127.0.0.1:9464."""
    server: Server = Server()
    """Access to metrics, health and status page."""
    events: Events | None = None
    """Pub/Sub wake-ups; default none."""
    pools: Mapping[str, Pool] = Field(strict=False)
    """Every pool by name, including the pools that follow from templates. At least one."""
    templates: Mapping[str, TemplateSettings] = Field(default={}, strict=False)
    """Settings of single templates, by templateId; default none, so every template has the defaults."""
    template_limits: Mapping[str, TemplateLimits] = Field(strict=False)
    """HF's templates by id. Not a setting of this file: pools and cap come from HF's templates file, the other limits
    from ``templates``."""

    instance: str = ""
    """HF's provider instance, which owns the state directory; the scripts write it into intent.json. Not a setting of
    this file, but taken from ``HF_PROVIDER_NAME``, or from the names of HF's two files."""
    digests: Digests = Digests("", "")
    """Digests of the contents of HF's two files. Not a setting of this file."""

    @property
    def site(self) -> Site:
        """Return the settings that the backends of all pools share."""
        return Site(self.id, self.name_prefix, self.adopt_prefixes, self.compute, self.ca_bundle)

    def of_shard(self, shards: Shards, number: int) -> Settings:
        """Return the settings of the shard ``number``: only its own pools, and an equal part of each budget."""
        pools = {name: pool for name, pool in self.pools.items() if find_shard(name, shards) == number}
        served = {
            id_: replace(limits, pools=own)
            for id_, limits in self.template_limits.items()
            if (own := tuple(name for name in limits.pools if name in pools))
        }
        budgets = {name: getattr(self.budget, name) for name in ("per_hour", "per_month")}
        parts = {name: amount and amount / len(shards) for name, amount in budgets.items()}
        changed = {"pools": pools, "template_limits": served, "budget": self.budget.model_copy(update=parts)}
        names = {name: shard_instance(getattr(self, name), number) for name in ("id", "instance")}
        return self.model_copy(update=changed | names)

    def limits(self) -> Limits:
        """Return the limits for the plan."""
        grace, unlisted = 60 * self.orphan_grace_minutes, self.delete_unlisted_after_hours
        return self.as_limits(
            Limits,
            prefix=self.name_prefix,
            pools={name: pool.limits() for name, pool in self.pools.items()},
            templates=self.template_limits,
            orphans=OrphanLimits(grace, self.orphan_cap_per_hour, unlisted and HOUR * unlisted),
            backoff=self.backoff.as_limits(model.Backoff),
            budget=self.budget.as_limits(model.Budget),
        )
