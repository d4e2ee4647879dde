"""The kinds of panel that the boards are made of: a number, bars, lines, a stack.

In: a title, what a bad value means and what to do about it, a place (x, y, width, height on the grid of 24
columns), a unit, what to show for no data, queries, and thresholds. Out: SDK panel builders on the board's
data source variable. A panel without one of these cannot be written, though thresholds may stay neutral. It
knows Grafana's model and nothing of goodput's series.

    lines("Up", "0 is down", place=(0, 0, 8, 8), unit="bool", no_value="none", queries=[query("up", "up")])
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import bargauge, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.models import common, dashboard

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
# The scrape interval is 5 s; $__rate_interval is then 20 s, the least that a rate can be trusted over.
INTERVAL_MIN = "15s"

GREEN, YELLOW, RED, NEUTRAL = "green", "#EAB839", "red", "text"


def query(expr: str, legend: str, instant: bool = False) -> prometheus.Dataquery:
    """One query; `instant` for panels that show the present only."""
    builder = prometheus.Dataquery().expr(expr).legend_format(legend).datasource(DATASOURCE)
    return builder.instant() if instant else builder.range()


def numbers(title, description, *, place, unit, no_value, queries, steps=(), trend=True) -> stat.Panel:
    """Big numbers, one per series, with their trend behind them."""
    panel = (
        stat.Panel()
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.AREA if trend else common.BigValueGraphMode.NONE)
        .orientation(common.VizOrientation.VERTICAL)
        .reduce_options(_last())
    )
    return _finish(panel, title, description, place, unit, no_value, queries, steps)


def bars(title, description, *, place, unit, no_value, queries, steps=()) -> bargauge.Panel:
    """One horizontal bar per series, the largest first."""
    panel = (
        bargauge.Panel()
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .orientation(common.VizOrientation.HORIZONTAL)
        .reduce_options(_last())
        .min(0)
    )
    return _finish(panel, title, description, place, unit, no_value, queries, steps)


def lines(title, description, *, place, unit, no_value, queries, steps=()) -> timeseries.Panel:
    """Lines over time, with the thresholds drawn where there are any."""
    style = common.GraphThresholdsStyleMode.DASHED if steps else common.GraphThresholdsStyleMode.OFF
    panel = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(5)
        .min(0)
        .show_points(common.VisibilityMode.NEVER)
        .legend(_legend(common.LegendPlacement.BOTTOM, ["lastNotNull"]))
        .tooltip(_tooltip())
        .color_scheme(dashboard_builders.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
        .thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(style))
    )
    return _finish(panel, title, description, place, unit, no_value, queries, steps)


def stack(title, description, *, place, unit, no_value, queries, percent=False) -> timeseries.Panel:
    """Areas on top of each other, each as it is or, with `percent`, as its share of them all."""
    mode = common.StackingMode.PERCENT if percent else common.StackingMode.NORMAL
    panel = (
        lines(title, description, place=place, unit=unit, no_value=no_value, queries=queries)
        .stacking(common_builders.StackingConfig().group("A").mode(mode))
        .fill_opacity(75)
        .line_width(0)
        .legend(_legend(common.LegendPlacement.RIGHT, ["lastNotNull", "mean"]))
    )
    return panel.max(1) if percent else panel


def paint(panel, colours: dict[str, str]):
    """Give series of these names the same colour wherever they appear; the panel comes back."""
    for name, colour in colours.items():
        value = {"mode": "fixed", "fixedColor": colour}
        panel.override_by_name(name, [dashboard.DynamicConfigValue(id_val="color", value=value)])
    return panel


def change(panel, name: str, *, unit: str, steps=(), axis_right: bool = False):
    """Give one series another unit, and thresholds or an axis of its own; the panel comes back."""
    values = {"unit": unit}
    if steps:
        values["thresholds"] = _thresholds(steps).build()
    if axis_right:
        values["custom.axisPlacement"] = "right"
    return panel.override_by_name(
        name, [dashboard.DynamicConfigValue(id_val=key, value=value) for key, value in values.items()]
    )


def link(title: str, uid: str) -> dashboard_builders.DashboardLink:
    """A link to another board at the top of one, which keeps the time range and the variables."""
    return (
        dashboard_builders.DashboardLink(title)
        .type(dashboard.DashboardLinkType.LINK)
        .url(f"/d/{uid}")
        .icon("dashboard")
        .keep_time(True)
        .include_vars(True)
    )


def _finish(panel, title, description, place, unit, no_value, queries, steps):
    x, y, width, height = place
    for ref, one in zip("ABCDEFGH", queries, strict=False):
        panel.with_target(one.ref_id(ref))
    return (
        panel.title(title)
        .description(description)
        .grid_pos(dashboard.GridPos(x=x, y=y, w=width, h=height))
        .datasource(DATASOURCE)
        .interval(INTERVAL_MIN)
        .unit(unit)
        .no_value(no_value)
        .thresholds(_thresholds(steps))
    )


def _thresholds(steps) -> dashboard_builders.ThresholdsConfig:
    """(value, colour) ascending; the first value is None, for everything below the next."""
    steps = [dashboard.Threshold(value=value, color=colour) for value, colour in steps or [(None, NEUTRAL)]]
    return dashboard_builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _last() -> common_builders.ReduceDataOptions:
    return common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _legend(placement, calcs) -> common_builders.VizLegendOptions:
    legend = common_builders.VizLegendOptions().show_legend(True).placement(placement).calcs(calcs)
    return legend.display_mode(common.LegendDisplayMode.TABLE)


def _tooltip() -> common_builders.VizTooltipOptions:
    return (
        common_builders.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
