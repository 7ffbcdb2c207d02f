"""The conversion of boards to Grafana's own types."""

from __future__ import annotations

import itertools

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
from grafana_foundation_sdk.models.common import BigValueTextMode, LegendPlacement, SortOrder, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from .questions import Board, Question

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

VARIABLES = {
    "instance": ("Provisioner", "label_values(hf_provisioner_active, instance)"),
    "pool": ("Pool", 'label_values(hf_provisioner_window{instance=~"$instance"}, pool)'),
    "template": ("Template", 'label_values(hf_provisioner_machines_desired{instance=~"$instance"}, template)'),
}
"""The variables of a board by name, each with its title on the board and the query for its values."""


def dashboard(board: Board) -> Dashboard:
    """Return the board as Grafana's own types."""
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


def panel(question: Question, id_: int) -> Stat | TimeSeries:
    """Return a panel without a position. Grafana's library puts each panel after the previous panel of its row."""
    made = number() if question.number else lines()
    made.id(id_).title(question.title).description(question.about).unit(question.unit).datasource(SOURCE)
    made.span(question.width)
    if isinstance(made, Stat) and question.lines[0].name:
        made.text_mode(BigValueTextMode.NAME)
    if question.bad_from is not None:
        made.thresholds(thresholds((None, "green"), (question.bad_from, "red")))
    if question.bad_below is not None:
        made.thresholds(thresholds((None, "red"), (question.bad_below, "green")))
    for letter, line in zip("ABCD", question.lines, strict=False):
        query = Dataquery().expr(line.query).legend_format(line.name).ref_id(letter).datasource(SOURCE)
        made.with_target(query.format(PromQueryFormat.TIME_SERIES))
    return made


def number() -> Stat:
    """Return a panel that shows the newest value as a number."""
    return Stat().reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).height(5)


def lines() -> TimeSeries:
    """Return a panel that draws values over time as lines. The names of the lines are below the drawing."""
    legend = VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM)
    tooltip = VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    return TimeSeries().legend(legend).tooltip(tooltip).fill_opacity(10).height(8)


def thresholds(*steps: tuple[float | None, str]) -> ThresholdsConfig:
    """Return the colours of a panel. Each step is a number and the colour of the values from this number on. The number
    None stands for the lowest value."""
    made = [Threshold(value=value, color=color) for value, color in steps]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)
