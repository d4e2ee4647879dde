"""The kinds of panel that the boards are made of: a number, bars, lines, a stack, a table, a heat map, a waterfall.

Every panel has a title, a description (what a bad value means and what to do about it), a place (x, y, width, height on
a grid of 24 columns), a unit, a text for no data, queries, and thresholds, which may stay neutral.

    lines("Up", "0 is down", place=(0, 0, 8, 8), unit="bool", no_value="none", queries=[query("up", "up")])
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
# The scrape interval is 5 s; $__rate_interval is then 20 s, the least that a rate can be trusted over.
INTERVAL_MIN = "15s"

GREEN, YELLOW, RED, NEUTRAL = "green", "semi-dark-yellow", "red", "text"
BASE = "base"


class Panels(list):
    """The panels of a board: `@PANELS.add` above a function that builds one adds it."""

    def add(self, build):
        self.append(build)
        return build


def query(expr: str, legend: str, instant: bool = False) -> prometheus.Dataquery:
    """One query; `instant` for panels that show the present only."""
    builder = prometheus.Dataquery().expr(expr).legend_format(legend).datasource(DATASOURCE)
    return builder.instant() if instant else builder.range()


def column(expr: str, name: str) -> prometheus.Dataquery:
    """One query whose samples are the column `name` of a table; its labels are columns too."""
    return query(expr, name, instant=True).format(PromQueryFormat.TABLE)


def buckets(expr: str) -> prometheus.Dataquery:
    """One query of a histogram's buckets, by `le`."""
    return query(expr, "{{le}}").format(PromQueryFormat.HEATMAP)


def numbers(
    title, description, *, place, unit, no_value, queries, steps=(), trend=True, below=False
) -> stat.Panel:
    """Big numbers, one per series, with their trend behind them; beside each other or, where asked for, `below`."""
    panel = (
        stat.Panel()
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.AREA if trend else common.BigValueGraphMode.NONE)
        .orientation(common.VizOrientation.HORIZONTAL if below else common.VizOrientation.VERTICAL)
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        .wide_layout(below)
        .reduce_options(_last())
    )
    return _finish(panel, title, description, place, unit, no_value, queries, steps)


def bars(title, description, *, place, unit, no_value, queries, steps=()) -> bargauge.Panel:
    """One horizontal bar per series, the largest first."""
    panel = (
        bargauge.Panel()
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .value_mode(common.BarGaugeValueMode.TEXT)
        .sizing(common.BarGaugeSizing.MANUAL)
        .min_viz_height(14)
        .max_viz_height(24)
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
        .fill_opacity(0)
        .min(0)
        .show_points(common.VisibilityMode.NEVER)
        .legend(_legend(common.LegendPlacement.BOTTOM, []).display_mode(common.LegendDisplayMode.LIST))
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
    )
    if place[2] > 8:
        legend = _legend(common.LegendPlacement.RIGHT, ["lastNotNull", "mean"])
        panel.legend(legend.sort_by("Mean").sort_desc(True))
    if percent:
        # Grafana draws 0 to 100 % by itself; with limits of ours, some versions draw nothing (grafana/grafana#95581).
        panel.min(None)
    return panel


def top_over_range(count: int, expr: str, by: str, choose: str = "topk") -> str:
    """Of many lines the same few all along: those with the largest mean over the time shown, by these labels.

    topk() over time chooses anew at each moment, and would draw broken lines of any number of series.
    """
    return f"{expr} and on ({by}) {choose}({count}, avg_over_time(({expr})[$__range:$__interval] @ end()))"


def rows(
    title, description, *, place, unit, no_value, columns, first, sort, last=(), hide=(), steps=(), tall=False
) -> table.Panel:
    """A table: the samples of all `columns` with the same labels are one row.

    `first` are the labels in the order of their columns, which come before the values, and `last` those that come after;
    `sort` is the column by which rows are sorted, the largest first, or with a minus in front the smallest; `hide`
    leaves columns out; `tall` rows have room for two lines of text.
    """
    names = [one.build().legend_format for one in columns]
    values = {f"Value #{ref}": name for ref, name in zip("ABCDEFGH", names, strict=False)}
    order = {name: at for at, name in enumerate([*first, *values, *last])}
    organize = {
        "excludeByName": dict.fromkeys(("Time", *hide), True),
        "indexByName": order | ({"Value": len(first)} if len(names) == 1 else {}),
        "renameByName": values | ({"Value": names[0]} if len(names) == 1 else {}),
    }
    panel = (
        table.Panel()
        .show_header(True)
        .cell_height(common.TableCellHeight.LG if tall else common.TableCellHeight.SM)
        .min_width(60)
        .sort_by(
            [common_builders.TableSortByFieldState().display_name(sort.lstrip("-")).desc(sort[0] != "-")]
        )
        .with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=organize))
    )
    _finish(panel, title, description, place, unit, no_value, columns, steps)
    # A panel's unit and its words for no data would else be written into the cells of labels and into empty ones.
    for kind, values in (("string", {"unit": "string", "noValue": "–"}), ("number", {"noValue": "–"})):
        panel.override_by_field_type(
            kind, [dashboard.DynamicConfigValue(id_val=key, value=value) for key, value in values.items()]
        )
    return panel


def heat_map(title, description, *, place, unit, no_value, queries, scheme="Turbo") -> heatmap.Panel:
    """A line of cells per series, or per bucket where the query is of buckets(); warm is much."""
    colour = heatmap.HeatmapColorOptions().mode(heat.HeatmapColorMode.SCHEME).scheme(scheme).steps(64)
    of_buckets = any(one.build().format_val == PromQueryFormat.HEATMAP for one in queries)
    panel = (
        heatmap.Panel()
        .calculate(False)
        .color(colour.fill("dark-orange").scale(heat.HeatmapColorScale.LINEAR))
        .cell_gap(1)
        .show_value(common.VisibilityMode.NEVER)
        .show_legend()
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .y_axis(heatmap.YAxisConfig().unit(unit if of_buckets else "none"))
        .cell_values(heatmap.CellValues().unit("short" if of_buckets else unit))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common.HeatmapCellLayout.AUTO))
    )
    return _finish(panel, title, description, place, unit, no_value, queries, ())


def states(title, description, *, place, no_value, queries, names) -> statetimeline.Panel:
    """A band per series over time; `names` says for each number what it means and its colour."""
    panel = (
        statetimeline.Panel()
        .merge_values(True)
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
        .line_width(0)
        .fill_opacity(80)
        .mappings([_meanings({str(number): one for number, one in names.items()})])
        .legend(_legend(common.LegendPlacement.BOTTOM, []).display_mode(common.LegendDisplayMode.LIST))
        .tooltip(_tooltip())
    )
    return _finish(panel, title, description, place, "short", no_value, queries, ())


def waterfall(title, description, *, place, unit, no_value, bars_of, colours) -> barchart.Panel:
    """Bars that begin where the one above ended.

    `bars_of` are (name, series, base, length) from the top: the base is an expression for what the bar stands on, None
    for the ground, and the length one for what is seen; both give one sample without labels. A bar without one is left
    out. `colours` are those of the series.
    """
    of_series = {BASE: []} | {series: [] for _, series, *_ in bars_of}
    for order, (name, series, base, length) in enumerate(bars_of):
        of_series[series].append(_bar(order, name, length))
        if base is not None:
            of_series[BASE].append(_bar(order, name, base))
    columns = [column(" or ".join(bars), series) for series, bars in of_series.items()]
    panel = (
        barchart.Panel()
        .x_field("step")
        .orientation(common.VizOrientation.HORIZONTAL)
        .stacking(common.StackingMode.NORMAL)
        .show_value(common.VisibilityMode.ALWAYS)
        .bar_width(0.9)
        .group_width(0.9)
        .line_width(0)
        .fill_opacity(90)
        .min(0)
        .legend(_legend(common.LegendPlacement.BOTTOM, []).display_mode(common.LegendDisplayMode.LIST))
        .tooltip(_tooltip())
    )
    values = {f"Value #{ref}": series for ref, series in zip("ABCDEFGH", of_series, strict=False)}
    organize = {"excludeByName": {"Time": True, "order": True}, "indexByName": {}, "renameByName": values}
    for name, options in (
        ("merge", {}),
        ("sortBy", {"fields": {}, "sort": [{"field": "order", "desc": False}]}),
        ("organize", organize),
    ):
        panel.with_transformation(dashboard.DataTransformerConfig(id_val=name, options=options))
    _finish(panel, title, description, place, unit, no_value, columns, ())
    blank = dashboard.RangeMap(
        options=dashboard.DashboardRangeMapOptions(
            from_val=-1e9, to=1e9, result=dashboard.ValueMappingResult(text=" ")
        )
    )
    unseen = {
        "color": {"mode": "fixed", "fixedColor": "transparent"},
        "custom.fillOpacity": 0,
        "custom.hideFrom": {"legend": True, "tooltip": True, "viz": False},
        "mappings": [blank],
    }
    colour_series(panel, colours)
    return override(panel, BASE, unseen)


def _bar(order: int, name: str, expr: str) -> str:
    """The expression's sample, which has no labels, with the name and the order of its bar."""
    return f'label_replace(label_replace({expr}, "order", "{order:02}", "", ""), "step", "{name}", "", "")'


def override(panel, name: str, values: dict[str, object]):
    """Give one series or column other settings, by their ids in Grafana's model; the panel comes back."""
    return panel.override_by_name(
        name, [dashboard.DynamicConfigValue(id_val=key, value=value) for key, value in values.items()]
    )


def value_texts(panel, name: str, texts: dict[str, str | tuple[str, str]], wrap: bool = False):
    """Show texts, or (text, colour), in the place of a column's values; the panel comes back."""
    values: dict[str, object] = {"mappings": [_meanings(texts)]}
    if wrap:
        # The second is what Grafana 12 and later ask.
        values |= {"custom.cellOptions": {"type": "auto", "wrapText": True}, "custom.wrapText": True}
    elif any(isinstance(text, tuple) for text in texts.values()):
        values["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
    return override(panel, name, values)


def widths(panel, **pixels: int):
    """How wide columns are, by name with _ for a space; the panel comes back."""
    for name, width in pixels.items():
        override(panel, name.replace("_", " "), {"custom.width": width})
    return panel


def link_to(panel, name: str, title: str, url: str):
    """Make the cells of a column, or the series that match a /pattern/, a link; the panel comes back."""
    value = dashboard.DynamicConfigValue(
        id_val="links", value=[{"title": title, "url": url, "targetBlank": False}]
    )
    by = panel.override_by_regexp if name.startswith("/") else panel.override_by_name
    return by(name, [value])


def annotation(name: str, expr: str, title: str, colour: str) -> dashboard_builders.AnnotationQuery:
    """A line across the panels of a board at each moment, or an area over each time, for which `expr` has a sample."""
    return (
        dashboard_builders.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(colour)
        .expr(expr)
        .step(INTERVAL_MIN)
        .title_format(title)
        .text_format("")
        .tag_keys("")
    )


def _meanings(texts: dict[str, str | tuple[str, str]]) -> dashboard.ValueMap:
    results = {}
    for at, (value, text) in enumerate(texts.items()):
        text, colour = (text, None) if isinstance(text, str) else text
        results[value] = dashboard.ValueMappingResult(text=text, color=colour, index=at)
    return dashboard.ValueMap(options=results)


def colour_series(panel, colours: dict[str, str]):
    """Give series of these names the same colour wherever they appear; the panel comes back."""
    for name, colour in colours.items():
        value = {"mode": "fixed", "fixedColor": colour}
        panel.override_by_name(name, [dashboard.DynamicConfigValue(id_val="color", value=value)])
    return panel


def series_options(
    panel, name: str, *, unit: str, steps=(), axis_right: bool = False, axis_hidden: bool = False
):
    """Give one series another unit, and thresholds or an axis of its own; the panel comes back."""
    values = {"unit": unit} | {"percentunit": {"decimals": 1}, "none": {"decimals": 0}}.get(unit, {})
    if steps:
        values["thresholds"] = _thresholds(steps).build()
    if axis_right:
        values |= {"custom.axisPlacement": "right", "custom.thresholdsStyle": {"mode": "off"}}
        if unit == "percentunit":
            values["custom.axisSoftMax"] = 0.1  # All zero would else be drawn on a scale to 10 000 %.
    if axis_hidden:
        values |= {"custom.axisPlacement": "hidden", "custom.thresholdsStyle": {"mode": "off"}}
    return panel.override_by_name(
        name, [dashboard.DynamicConfigValue(id_val=key, value=value) for key, value in values.items()]
    )


def matching_series_options(panel, pattern: str, *, unit: str):
    """Give all series whose names match another unit, and the axis on the right; the panel comes back."""
    values = {"unit": unit, "custom.axisPlacement": "right", "custom.thresholdsStyle": {"mode": "off"}}
    return panel.override_by_regexp(
        pattern, [dashboard.DynamicConfigValue(id_val=key, value=value) for key, value in values.items()]
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
    if unit == "percentunit":
        panel.decimals(1)
    elif unit in ("short", "cps", "reqps") and isinstance(panel, timeseries.Panel):
        panel.axis_soft_max(1)  # Nothing is a line at the bottom, not one on a scale to a hundred.
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
