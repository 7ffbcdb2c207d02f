"""Every setting of provisioner.yaml as a type: its default, its unit, and why.

What a value has to be stands in its type, as a check and as words. No I/O, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, StringConstraints

from provisioner import model
from provisioner.hostfactory.instance import Digests
from provisioner.model import HOUR, Limits, OrphanLimits, TemplateLimits
from provisioner.names import MAX_PREFIX_LENGTH
from provisioner.schema.pool import (
    Compute,
    Duration,
    DurationOrZero,
    Label,
    OptionalFile,
    PlaceName,
    Pool,
    Price,
    Share,
    Site,
    Text,
)
from provisioner.schema.problems import Expects, Section

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
    """Seconds between two cycles when nothing wakes the loop; default 5, at most 15: a loop that is silent for a minute
    counts as dead. A lost wake-up costs no more than this."""
    floor_seconds: DurationOrZero = 0.5
    """Least seconds between two cycles of a busy loop; default 0.5. Changes gather, instead of one plan for each."""
    act_seconds: Duration = 2.0
    """Seconds after which a cycle starts no new call to a cloud; default 2. The rest is planned anew on newer facts."""
    intent_poll_seconds: Duration = 0.1
    """Seconds between two looks at intent.json's signature; default 0.1. Works on NFS, where no notice is sent."""


class Backoff(Section):
    """How long a pool that refuses machines is left alone."""

    first_seconds: Duration = 5.0
    """Seconds before the first probe after a refusal; default 5. Doubles with each further refusal, with jitter."""
    last_seconds: Duration = 1800.0
    """Most seconds between two probes; default 1800. A pool whose machines fail makes some fifty a day."""
    no_room_seconds: Duration = 180.0
    """Most seconds between two probes of a pool that has no room (stock-out, quota); default 180. Such a probe costs a
    call, and room that returns is used within minutes."""


class Events(Section):
    """Pub/Sub messages that wake the loop and announce preemptions. Hints only: losing them all loses no machine."""

    project: PlaceName
    """Google Cloud project of the subscription. No default."""
    subscription: Text
    """Name of the subscription, without ``projects/…``. No default. It must be ours alone: messages are taken."""


class Budget(Section):
    """What all machines together may cost, by ``price_per_hour`` of their templates and pools. Where it is used up no
    more are asked for (reason ``budget``); none that exists is ever deleted for it."""

    per_hour: Amount = None
    """Most that all machines that are there or asked for may cost in an hour; default any. Bounds the bill however much
    HF asks for."""
    per_month: Amount = None
    """What machines may cost in a calendar month (UTC); default any. Once it is reached no more are asked for until the
    next month; those that run go on and cost more. A lost memory knows nothing of the month before its loss."""
    currency: Text = "USD"
    """The currency of prices and budgets, as it is shown; default USD. Nothing is converted."""


class Server(Section):
    """Who may read metrics, health and status page. What is read changes nothing, and holds no secret and no pod spec;
    it names machines, addresses and requests."""

    token_file: OptionalFile = None
    """File of one line, the token that a reader has to send; default none, whoever reaches ``listen`` may read.
    Sent as ``Authorization: Bearer TOKEN``. The file is read anew when it changes.
    ``/healthz`` and ``/readyz`` answer without it, by their code alone: probes of a platform have no token."""
    tls_cert: OptionalFile = None
    """File of the server's certificate with its chain, PEM; default none, no TLS. Needs ``tls_key``. A renewed one is
    taken without another start. Without TLS everybody between reader and server can read the token."""
    tls_key: OptionalFile = None
    """File of the certificate's private key, PEM, without a passphrase; default none."""


class TemplateSettings(Section):
    """What a request for machines of a template may be answered with before all of them run."""

    straggler_seconds: DurationOrZero = 180.0
    """Seconds without a change of any machine of a request, once most of them run, after which the others fail and the
    request ends; default 180; 0: they have until the request's deadline. HF uses no machine of a request before its
    end, so one that never boots holds back all that run. What comes later is deleted."""
    straggler_share: Share = 0.9
    """Share of a request's machines that has to run before ``straggler_seconds`` counts; default 0.9. Of fewer than ten
    machines that means all of them: less, where requests are small."""

    tries: CountOrZero = 3
    """Tries of one wanted machine that may fail before it is given up with the reason of the last; default 3; 0: as
    many as the request's deadline leaves time for. A create that is refused for good, a boot that fails and a machine
    that dies before its request ends are tries; a stock-out, a quota, a call that is throttled or not answered, and the
    change to another pool are none."""
    max_lifetime_seconds: Amount = None
    """Seconds that a machine runs before getReturnRequests names it as ``aged``, with an hour of grace; default none:
    it never does. It is deleted when HF gives it back, and not before. At most a tenth of the template's machines, at
    least one, is offered at a time; where all its pools back off, one, and none while a request waits. So a new image
    rolls through the grid. What is offered stays so when this is taken away."""
    price_per_hour: Price = None
    """What a machine of the template costs in an hour, in whatever pool; default the pool's ``price_per_hour``. For
    templates that share a pool and differ in size."""

    def limits(self, id_: str, pools: tuple[str, ...], max_machines: int | None) -> TemplateLimits:
        """The limits of the template for the plan; id, pools and cap are from HF's templates file."""
        given = {"id": id_, "pools": pools, "max_machines": max_machines, "straggler_after": self.straggler_seconds}
        return self.as_limits(TemplateLimits, **given)


SECTIONS: Mapping[str, type[Section]] = {
    "loop": Loop,
    "backoff": Backoff,
    "budget": Budget,
    "compute": Compute,
    "events": Events,
    "server": Server,
}


class Settings(Section):
    """The whole configuration. Paths are absolute or relative to the working directory, never to the file."""

    id: Label
    """The provisioner's id: label value on pods; default ``HF_PROVIDER_NAME``.
    Two provisioners that share a namespace need different ids."""
    name_prefix: Prefix = "hf"
    """First part of machine names; default ``GCP_INSTANCE_PREFIX`` of HF's provider config, else hf.
    Two provisioners that share a MIG need different prefixes."""
    request_deadline_minutes: Duration = 60.0
    """Minutes until what is missing of a request fails; default 60. HF counts a running request as supply."""
    return_deadline_minutes: Duration = 60.0
    """Minutes until a return that cannot be carried out ends with an error; default 60."""
    orphan_grace_minutes: Duration = 10.0
    """Minutes an orphan is watched before it is deleted; default 10. Time for a person to notice a mistake."""
    orphan_cap_per_hour: CountOrZero = 20
    """Most orphans deleted in an hour; default 20; 0 keeps them all. Limits what a wrong state file can cost."""
    cancel_after_minutes: Duration = 30.0
    """Minutes without HF asking for a request, while it asks for others, until it is cancelled; default 30."""
    retention_hours: DurationOrZero = 24.0
    """Hours a request stays in the files after HF has seen its end; default 24. HF may ask again."""
    delete_unlisted_after_hours: UnlistedHours = None
    """Hours after which a machine that HF was told of, and that none of its lists names any more, is deleted as an
    orphan, with the orphans' cap and brake; default none: it is only shown. At least 1: lists may come in parts. Only
    for grids that call getReturnRequests with all their hosts."""
    adopt_prefixes: AdoptPrefixes = ()
    """Name prefixes of another provider's machines that a return may delete; default none. For a cut-over.
    Google's connector names instances ``sym-…`` and pods ``g<uuid>-…-pod-<n>``. Its operator makes no pod anew, but
    holds each by a finalizer: let it run until the last is gone, or they stay terminating and their returns fail."""
    usage_days: UsageDays = 92
    """Days of which machine-hours are kept for `provisioner usage`; default 92, a quarter; at least 32, as a month's
    budget is judged by them. Each day takes a line of memory.json per template, pool and account."""
    loop: Loop = Loop()
    """The pace of the loop."""
    backoff: Backoff = Backoff()
    """How long a pool that refuses machines is left alone."""
    budget: Budget = Budget()
    """What machines may cost; default any amount."""
    compute: Compute = Compute()
    """How the Compute Engine API is used."""
    ca_bundle: OptionalFile = None
    """File of the certificate authorities (PEM) that every client trusts instead of the system's; default
    ``REQUESTS_CA_BUNDLE``, else the system's. For a proxy that opens TLS, or endpoints with certificates of your own:
    put in all that are met, the public ones too where they are. A cluster's own authority (``ca_file``, kubeconfig)
    counts for that cluster instead. Read at the start."""
    listen: Listen = "127.0.0.1:9464"
    """Address of metrics, health and status page; default 127.0.0.1:9464. Port 0 takes a free one. On another address
    than the loopback everybody who reaches it can read: see ``server``."""
    server: Server = Server()
    """Who may read metrics, health and status page."""
    events: Events | None = None
    """Pub/Sub wake-ups; default none."""
    pools: Mapping[str, Pool] = Field(strict=False)
    """Every pool by name, those that follow from templates included. At least one."""
    templates: Mapping[str, TemplateSettings] = Field(default={}, strict=False)
    """What requests for HF's templates have of their own, by templateId; default none, every template has the
    defaults."""
    template_limits: Mapping[str, TemplateLimits] = Field(strict=False)
    """HF's templates by id. Not a setting of this file: pools and cap are from HF's templates file, the rest is from
    ``templates``."""

    instance: str = ""
    """HF's provider instance, which the scripts write into intent.json: owner of the state directory. Not a setting of
    this file: ``HF_PROVIDER_NAME``, or from the names of HF's two files."""
    digests: Digests = Digests("", "")
    """By which content HF's two files are known. Not a setting of this file."""

    @property
    def site(self) -> Site:
        """The settings that the backends of all pools share."""
        return Site(self.id, self.name_prefix, self.adopt_prefixes, self.compute, self.ca_bundle)

    def limits(self) -> Limits:
        """The limits for the plan."""
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
