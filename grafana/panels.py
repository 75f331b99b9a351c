"""The few kinds of panel that both dashboards are made of, and the frame around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models

from grafana.expressions import Query, state_number
from policies.types import State

Panel = Builder[models.Panel]
Variable = Builder[models.VariableModel]

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "slotgate"
WIDTH = 24  # of a dashboard, in Grafana's columns
HEIGHT = 8  # of a panel with an axis
COLOURS = {
    State.STARTING: "light-blue",
    State.WARMING: "blue",
    State.READY: "green",
    State.DRAINING: "yellow",
    State.DRAINED: "purple",
    State.EJECTED: "orange",
    State.DOWN: "red",
}


def lines(
    title: str,
    *queries: Query,
    unit: str = "short",
    about: str = "",
    width: int = WIDTH // 2,
    stacked: bool = False,
    most: float | None = None,
) -> Panel:
    """Figures over time, from zero up; `most` is the end of the axis where there is one."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(HEIGHT)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(options.VisibilityMode.NEVER)
        .tooltip(
            common.VizTooltipOptions()
            .mode(options.TooltipDisplayMode.MULTI)
            .sort(options.SortOrder.DESCENDING)
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(options.LegendDisplayMode.LIST)
            .placement(options.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(options.StackingMode.NORMAL))
    if most is not None:
        panel.max(most)
    for target in _targets(queries):
        panel.with_target(target)
    return panel


def number(
    title: str,
    query: Query,
    unit: str = "short",
    about: str = "",
    limits: Mapping[str, float] | None = None,
    width: int = WIDTH // 6,
) -> Panel:
    """One figure of now; `limits` are the values from which on it has another colour."""
    steps = [models.Threshold(None, "text")]
    steps += [models.Threshold(value, colour) for colour, value in (limits or {}).items()]
    panel = (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .span(width)
        .height(HEIGHT // 2)
        .thresholds(dashboards.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .graph_mode(options.BigValueGraphMode.AREA)
        .text_mode(options.BigValueTextMode.NAME if query.legend else options.BigValueTextMode.VALUE)
    )
    for target in _targets([query]):
        panel.with_target(target)
    return panel


def states(selector: str = "", width: int = WIDTH // 2) -> Panel:
    """What every backend was up to, and when."""
    named = models.ValueMap(
        {
            str(number): models.ValueMappingResult(text=state.value, color=COLOURS[state], index=number)
            for number, state in enumerate(State)
        }
    )
    (target,) = _targets([Query(state_number(selector), "{{backend}}")])
    return (
        statetimeline.Panel()
        .title("States")
        .description("Reasons: slotgate status, or GET /admin/backends.")
        .datasource(SOURCE)
        .span(width)
        .height(HEIGHT)
        .mappings([named])
        .merge_values(True)
        .show_value(options.VisibilityMode.AUTO)
        .with_target(target)
    )


def frame(title: str, uid: str, about: str, variables: Iterable[Variable]) -> dashboards.Dashboard:
    """A dashboard without its panels yet; the first variable is where the figures come from."""
    frame = (
        dashboards.Dashboard(title)
        .uid(uid)
        .description(about)
        .tags([TAG])
        .readonly()
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboards.DashboardLink("slotgate")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .keep_time(True)
        )
        .with_variable(dashboards.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in variables:
        frame.with_variable(variable)
    return frame


def choice(name: str, metric: str, *, all: bool) -> Variable:
    """One of the values that a label has; `all`: or several, or all of them."""
    variable = (
        dashboards.QueryVariable(name)
        .label(name)
        .datasource(SOURCE)
        .query(f"label_values({metric}, {name})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
    )
    if all:
        everything = models.VariableOption(text="All", value="$__all")
        variable.multi(True).include_all(True).all_value(".*").current(everything)
    return variable


def filled(frame: dashboards.Dashboard, rows: Mapping[str, Iterable[Panel]]) -> dashboards.Dashboard:
    """The same dashboard with these panels under their titles, from top to bottom."""
    for title, panels in rows.items():
        frame.with_row(dashboards.Row(title))
        for panel in panels:
            frame.with_panel(panel)
    for number, placed in enumerate(frame.build().panels or (), start=1):
        placed.id_val = number
    return frame


def _targets(queries: Iterable[Query]) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery()
        .ref_id(chr(ord("A") + place))
        .expr(query.expr)
        .legend_format(query.legend)
        .range()
        for place, query in enumerate(queries)
    ]
