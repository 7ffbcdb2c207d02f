"""The dashboards, each made from its questions: ``make dashboards`` writes the JSON files that Grafana imports.

Every query asks for the chosen provisioners (``$instance``, as Prometheus scrapes them), and where it can for the
chosen pools and templates. Panels stand in the order in which an operator asks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueTextMode, LegendPlacement, SortOrder, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

HERE = Path(__file__).parent
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
"""Columns of a dashboard."""

LABELS = ("instance", "pool", "template")
VARIABLES = {
    "instance": ("Provisioner", "label_values(hf_provisioner_active, instance)"),
    "pool": ("Pool", 'label_values(hf_provisioner_window{instance=~"$instance"}, pool)'),
    "template": ("Template", 'label_values(hf_provisioner_machines_desired{instance=~"$instance"}, template)'),
}
"""Each variable's name on the board, and where Prometheus has its values."""


def chosen(name: str, labels: str = "instance", **fixed: str) -> str:
    """A metric of ours, of the chosen ``labels`` (separated by blanks) and of these values."""
    matches = [f'{label}=~"${label}"' for label in labels.split()] + [
        f'{key}="{value}"' for key, value in fixed.items()
    ]
    prefix = "" if name.startswith("process_") else "hf_provisioner_"
    return f"{prefix}{name}{{{', '.join(matches)}}}"


def rose(metric: str, by: str, over: str = "5m") -> str:
    """How much a counter rose."""
    return f"sum by ({by}) (increase({metric}[{over}]))"


def quantile(share: float, metric: str, by: str = "") -> str:
    """A quantile of a histogram over ten minutes."""
    name, _, matches = metric.partition("{")
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({name}_bucket{{{matches}[10m])))"


def each(label: str) -> str:
    """A line's name: the value of its label."""
    return f"{{{{{label}}}}}"


@dataclass(frozen=True)
class Line:
    """A query, and how its lines are called."""

    query: str
    name: str


@dataclass(frozen=True)
class Question:
    """A panel: what somebody asks, and what answers it."""

    title: str
    about: str
    lines: Sequence[Line]
    unit: str = "short"
    width: int = 6
    number: bool = False
    """Shown as a number and not as lines."""
    bad_from: float | None = None
    """A number from which on it is red."""
    bad_below: float | None = None
    """A number below which it is red."""


@dataclass(frozen=True)
class Board:
    """One dashboard: questions under headings."""

    name: str
    """Of its file, and with a prefix of the dashboard in Grafana."""
    title: str
    about: str
    variables: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Question]]]


def ask(title: str, about: str, query: str, name: str = "", unit: str = "short", width: int = 6) -> Question:
    """A panel of lines."""
    return Question(title, about, [Line(query, name)], unit, width)


def say(title: str, about: str, query: str, unit: str = "short", **bad: float) -> Question:
    """A number."""
    return Question(title, about, [Line(query, "")], unit, width=4, number=True, **bad)


AGE = "time() - max by ({by}) ({metric})"


def alive(by: str) -> list[Question]:
    """Whether the loops run."""
    last_success = AGE.format(by=by, metric=chosen("last_success_timestamp_seconds"))
    return [
        say(
            "Last ok cycle",
            "Seconds since a cycle ended without any failure. Grows while one pool or action fails in each cycle.",
            f"max({last_success})",
            "s",
            bad_from=300,
        ),
        say(
            "Configuration",
            "0 while a bad new configuration is refused and the old one is in force, and while HostFactory's scripts "
            "read other files than the loop (provisioner status).",
            f"min({chosen('config_ok')}) * (1 - (max({chosen('config_differs')}) or vector(0)))",
            bad_below=1,
        ),
        say(
            "Brake",
            "More than 0: orphans are not deleted until somebody has looked (provisioner recover) and ran "
            "provisioner recover --release-brake.",
            f"sum({chosen('brake_engaged')})",
            bad_from=1,
        ),
        say(
            "Loops",
            "Processes that run a provisioner's loop; others stand by.",
            f"sum({chosen('active')})",
            bad_below=1,
        ),
        say(
            "Slots set aside",
            "A forbidden transition was asked of them: a bug; look at the log's ERROR.",
            f"sum({chosen('slots_set_aside')})",
            bad_from=1,
        ),
        Question(
            "Version",
            "What runs.",
            [Line(f"max by (version) ({chosen('build_info')})", "{{version}}")],
            width=4,
            number=True,
        ),
    ]


def machines(by: str, labels: str) -> list[Question]:
    """What is wanted, what is there, and what keeps it."""
    running = chosen("machines", labels, phase="running")
    pending = chosen("machines", labels, phase="pending")
    desired = chosen("machines_desired", labels)
    return [
        Question(
            "Desired and running",
            f"Machines by {by}. The gap is what is still missing.",
            [
                Line(f"sum by ({by}) ({desired})", f"{each(by)} desired"),
                Line(f"sum by ({by}) ({running})", f"{each(by)} running"),
            ],
            width=12,
        ),
        ask(
            "Pending",
            f"Machines that were asked for and do not run yet, by {by}.",
            f"sum by ({by}) ({pending})",
            each(by),
        ),
        ask(
            "Missing",
            f"Desired minus running, by {by}.",
            f"sum by ({by}) ({desired}) - sum by ({by}) ({running})",
            each(by),
        ),
        Question(
            "Held back, by reason",
            "Wanted, missing and not asked for; and the levers that people hold.",
            [
                Line(f"sum by (reason) ({chosen('machines_deferred', labels)})", each("reason")),
                Line(
                    f"sum by (lever, pool) ({chosen('lever', labels.replace(' template', ''))})",
                    f"held: {each('lever')} {each('pool')}",
                ),
            ],
            width=8,
        ),
        Question(
            "Refused by class",
            "Machines that their place refused, in five minutes, and those that wait because of it.",
            [
                Line(rose(chosen("refusals_total", labels.replace(" template", "")), "error"), "{{error}} refused"),
                Line(f"sum by (error) ({chosen('machines_refused', labels)})", "{{error}} waiting"),
            ],
            width=8,
        ),
        ask(
            "Machines by phase", "As observed.", f"sum by (phase) ({chosen('machines', labels)})", "{{phase}}", width=8
        ),
    ]


def pressure(labels: str) -> list[Question]:
    """How much may be asked for, and whether the places are seen."""
    return [
        Question(
            "Pending against window",
            "The window grows while machines start and halves when they fail.",
            [
                Line(f"sum by (pool) ({chosen('machines', labels, phase='pending')})", "{{pool}} pending"),
                Line(f"sum by (pool) ({chosen('window', labels)})", "{{pool}} window"),
            ],
            width=12,
        ),
        ask(
            "Age of the last complete look",
            "A pool without a fresh look gets no actions.",
            AGE.format(by="pool", metric=chosen("observation_timestamp_seconds", labels)),
            "{{pool}}",
            "s",
            width=12,
        ),
    ]


def churn(labels: str) -> list[Question]:
    """What is made, and what goes."""
    return [
        ask(
            "Creates",
            "Machines in five minutes, by pool and result.",
            rose(chosen("creates_total", labels), "pool, result"),
            "{{pool}} {{result}}",
            width=8,
        ),
        ask(
            "Deletes by reason",
            "Machines in five minutes.",
            rose(chosen("deletes_total", labels), "reason"),
            "{{reason}}",
            width=8,
        ),
        ask(
            "Lost by cause",
            "Machines that were taken in five minutes: gone, or announced to go when HostFactory gave them back.",
            rose(chosen("machines_lost_total", labels), "cause"),
            "{{cause}}",
            width=8,
        ),
    ]


def errors(labels: str) -> list[Question]:
    """What fails."""
    failed, every = chosen("creates_total", labels, result="failed"), chosen("creates_total", labels)
    return [
        ask(
            "Failed slots by class",
            "Tries that ended failed, in five minutes.",
            rose(chosen("slots_failed_total", labels), "error"),
            "{{error}}",
            width=8,
        ),
        ask(
            "Backend errors by class",
            "Looks, creates and deletes that failed, in five minutes.",
            rose(chosen("backend_errors_total", labels), "operation, error"),
            "{{operation}} {{error}}",
            width=8,
        ),
        ask(
            "Share of creates that fail",
            "By pool.",
            f"sum by (pool) (rate({failed}[5m])) / sum by (pool) (rate({every}[5m]))",
            "{{pool}}",
            "percentunit",
            width=8,
        ),
    ]


def speed(labels: str) -> list[Question]:
    """How long places take."""
    started = chosen("machine_startup_seconds", labels)
    return [
        Question(
            "Machine start",
            "From requested to running, by template.",
            [
                Line(quantile(share, started, "template"), f"{each('template')} p{share * 100:g}")
                for share in (0.5, 0.95)
            ],
            "s",
            8,
        ),
        ask(
            "Machine end, p95",
            "From returned to gone.",
            quantile(0.95, chosen("machine_shutdown_seconds", labels), "pool"),
            "{{pool}}",
            "s",
            8,
        ),
        ask(
            "Backend calls, p95",
            "One look, or one batch of creates or deletes.",
            quantile(0.95, chosen("backend_call_seconds", labels), "pool, operation"),
            "{{pool}} {{operation}}",
            "s",
            8,
        ),
    ]


def requests() -> list[Question]:
    """What HostFactory asked for, and what became of it."""
    unmet = chosen("oldest_unmet_timestamp_seconds", "instance")
    return [
        ask(
            "Open requests",
            "Requests and returns without a terminal answer.",
            f"sum by (kind) ({chosen('requests', status='running')})",
            "{{kind}}",
            width=8,
        ),
        ask(
            "Ended with an error",
            "In the state files; they leave with their retention.",
            f"sum by (kind) ({chosen('requests', status='complete_with_error')})",
            "{{kind}}",
            width=8,
        ),
        ask(
            "Longest wait",
            "Since when the oldest request has been unmet; nothing is drawn for a template without one.",
            f"time() - min by (template) ({unmet})",
            "{{template}}",
            "s",
            8,
        ),
    ]


def leftovers() -> list[Question]:
    """What HostFactory and the places leave for people."""
    return [
        ask(
            "Not in HostFactory's lists",
            "Machines that run and that HostFactory has not listed for 24 hours.",
            f"sum by (pool) ({chosen('machines_unlisted')})",
            "{{pool}}",
            width=12,
        ),
        ask(
            "Stuck terminating",
            "Machines that are still there long after the end of their grace period; provisioner status names them.",
            f"sum by (pool) ({chosen('machines_stuck')})",
            "{{pool}}",
            width=12,
        ),
    ]


def files() -> list[Question]:
    """The files that scripts and loop share."""
    return [
        ask(
            "Wait for the lock of intent.json, p95",
            "Scripts give up after 20 s.",
            quantile(0.95, chosen("store_lock_wait_seconds")),
            "",
            "s",
            12,
        ),
        ask("State files", "Size of each.", f"max by (file) ({chosen('store_bytes')})", "{{file}}", "bytes", 12),
    ]


def used() -> list[Question]:
    """Who uses machines."""
    return [
        ask(
            "Machine-hours in an hour, by pool",
            "Machines that are there, on average of ten minutes.",
            f"sum by (pool) (rate({chosen('machine_seconds_total')}[10m]))",
            each("pool"),
            width=12,
        ),
        ask(
            "Machine-hours in a day, by provisioner",
            "In the 24 hours before.",
            f"sum by (instance) (increase({chosen('machine_seconds_total')}[1d])) / 3600",
            each("instance"),
            width=12,
        ),
    ]


def spent() -> list[Question]:
    """What machines cost, beside what they may; in the currency of the setting ``budget``."""
    return [
        Question(
            f"Cost {words}, and its budget",
            about,
            [
                Line(f"sum by (instance) ({chosen(metric)})", f"{each('instance')} cost"),
                Line(f"sum by (instance) ({chosen('budget', per=per)})", f"{each('instance')} budget"),
            ],
            width=12,
        )
        for words, per, metric, about in (
            ("per hour", "hour", "cost_per_hour", "By price_per_hour; empty without one."),
            ("of this month", "month", "cost_this_month", "Calendar month, UTC, by the present prices."),
        )
    ]


def process() -> list[Question]:
    """The loop as a process."""
    cycle = chosen("cycle_duration_seconds")
    return [
        ask(
            "Cycles by result",
            "Per second. partial: some action or pool failed.",
            f"sum by (result) (rate({chosen('cycles_total')}[5m]))",
            "{{result}}",
            "cps",
            5,
        ),
        Question(
            "Cycle time",
            "One pass of the loop.",
            [Line(quantile(share, cycle), f"p{share * 100:g}") for share in (0.5, 0.95)],
            "s",
            5,
        ),
        ask(
            "What woke the loop",
            "Per second.",
            f"sum by (source) (rate({chosen('wakeups_total')}[5m]))",
            "{{source}}",
            "cps",
            5,
        ),
        ask(
            "Memory",
            "Resident.",
            f"max by (instance) ({chosen('process_resident_memory_bytes')})",
            "{{instance}}",
            "bytes",
            5,
        ),
        ask(
            "CPU",
            "Share of one core.",
            f"sum by (instance) (rate({chosen('process_cpu_seconds_total')}[5m]))",
            "{{instance}}",
            "percentunit",
            4,
        ),
    ]


def fleet() -> Iterator[Question]:
    """Every provisioner beside the others."""
    by_instance: Sequence[tuple[str, str, str, str]] = (
        ("Age of the last ok cycle", "Above 300 s somebody is called.", AGE, "last_success_timestamp_seconds"),
        (
            "Brake",
            "1 where orphans are not deleted until somebody has looked.",
            "max by ({by}) ({metric})",
            "brake_engaged",
        ),
        ("Loops", "1 where the loop runs; 0 where a process stands by.", "max by ({by}) ({metric})", "active"),
    )
    for title, about, form, metric in by_instance:
        unit = "s" if form is AGE else "short"
        yield ask(title, about, form.format(by="instance", metric=chosen(metric)), "{{instance}}", unit, 8)


BOARDS = (
    Board(
        "fleet",
        "HostFactory provisioners",
        "All provisioners side by side: which of them needs somebody.",
        ["instance"],
        [
            ("Alive?", list(fleet())),
            ("Enough machines?", machines("instance", "instance")),
            ("What goes wrong", [*churn("instance"), *errors("instance")]),
        ],
    ),
    Board(
        "provisioner",
        "HostFactory provisioner",
        "One provisioner, from the question an operator asks first to the one asked last.",
        ["instance"],
        [
            ("Alive?", alive("instance")),
            ("True?", machines("template", "instance")),
            ("Pressure", pressure("instance")),
            ("Churn", churn("instance")),
            ("Errors", errors("instance")),
            ("Speed", speed("instance")),
            ("Process", process()),
        ],
    ),
    Board(
        "pool",
        "HostFactory pool",
        "One pool, or some: what is wanted there, what the place makes of it, and why not more.",
        LABELS,
        [
            ("True?", machines("template", "instance pool template")),
            ("Pressure", pressure("instance pool")),
            ("Churn", churn("instance pool")),
            ("Errors", errors("instance pool")),
            ("Speed", speed("instance pool")),
        ],
    ),
    Board(
        "edge",
        "HostFactory's edge",
        "What HostFactory asks for and hears, and the files between its scripts and the loop.",
        ["instance"],
        [
            ("Requests", requests()),
            ("What is left for people", leftovers()),
            ("Files", files()),
        ],
    ),
    Board(
        "cost",
        "HostFactory cost",
        "Who uses machines, and what they cost beside the budget.",
        ["instance"],
        [("Usage", used()), ("Cost", spent())],
    ),
)


def panel(question: Question, id_: int) -> Stat | TimeSeries:
    """One panel, at the next free place of its row."""
    made = number() if question.number else lines()
    made.id(id_).title(question.title).description(question.about).unit(question.unit).datasource(SOURCE)
    made.span(question.width)
    if isinstance(made, Stat) and question.lines[0].name:
        made.text_mode(BigValueTextMode.NAME)
    if question.bad_from is not None:
        made.thresholds(thresholds((None, "green"), (question.bad_from, "red")))
    if question.bad_below is not None:
        made.thresholds(thresholds((None, "red"), (question.bad_below, "green")))
    for letter, line in zip("ABC", question.lines, strict=False):
        query = Dataquery().expr(line.query).legend_format(line.name).ref_id(letter).datasource(SOURCE)
        made.with_target(query.format(PromQueryFormat.TIME_SERIES))
    return made


def number() -> Stat:
    """The newest value, as a number."""
    return Stat().reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).height(5)


def lines() -> TimeSeries:
    """Values over time, their names below."""
    legend = VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM)
    tooltip = VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    return TimeSeries().legend(legend).tooltip(tooltip).fill_opacity(10).height(8)


def thresholds(*steps: tuple[float | None, str]) -> ThresholdsConfig:
    """Colours, each from a value on."""
    made = [Threshold(value=value, color=color) for value, color in steps]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def dashboard(board: Board) -> Dashboard:
    """The board, as Grafana's own types."""
    made = (
        Dashboard(board.title)
        .uid(f"hostfactory-{board.name}")
        .description(board.about)
        .tags(["hostfactory"])
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name in board.variables:
        label, values = VARIABLES[name]
        variable = (
            QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query(values)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
        made.with_variable(variable.multi(True).include_all(True).all_value(".*"))
    ids = itertools.count(1)
    for title, questions in board.rows:
        made.with_row(Row(title).id(next(ids)))
        for question in questions:
            made.with_panel(panel(question, next(ids)))
    return made


def texts() -> dict[Path, str]:
    """What each file holds."""
    encode: Callable[[object], str] = JSONEncoder(sort_keys=True, indent=2).encode
    return {HERE / f"{board.name}.json": encode(dashboard(board).build()) + "\n" for board in BOARDS}


if __name__ == "__main__":
    for file, text in texts().items():
        file.write_text(text)
        print(file)
