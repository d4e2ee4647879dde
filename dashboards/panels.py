"""The kinds of panel that the boards are made of: numbers, bars, lines, areas, a table, a heat map, a waterfall.

Every panel has a title, a description (what a bad value means and what to do about it), a unit, a text for no data,
queries (legend: expression) and thresholds. Its place follows from the layout of its board. `overrides` are pairs of a
series or column, or a /pattern/ of their names, and the settings by which it differs from its panel.

    lines("Up", "0: the target is down.", {"up": "up"}, unit="bool", no_value="none", overrides=[series("up", "short")])
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import table as tables
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
# The scrape interval is 5 s; $__rate_interval is then 20 s, the least that a rate can be trusted over.
INTERVAL_MIN = "15s"

GREEN, YELLOW, RED, NEUTRAL = "green", "semi-dark-yellow", "red", "text"
BASE = "base"
COLOUR_TEXT = {"custom.cellOptions": {"type": "color-text"}}
GAUGE = {"custom.cellOptions": {"type": "gauge", "mode": "basic"}}
OTHER_AXIS = {"custom.axisPlacement": "right", "custom.thresholdsStyle": {"mode": "off"}}

# Grafana's own palette begins with green and yellow, and its fifth colour is red, whatever a line stands for.
# None of these is in it, so that a line with labels looks like no other; all can be seen on white and on a dark ground.
CALM = ("#70a6db", "#b464a7", "#64b49a", "#475ed1", "#87bbc5", "#9b4b8e", "#5a73f2", "#5abff2", "#64a7b4")
ALARMING = ("#e02f44", "#ff7383", "#ff6f3c", "#c2185b", "#8c2f39")
BAD = re.compile(
    r"error|fail|refused|rejected|dropped|malformed|unreachable|invalid|timeout|killed|unkillable|unauthorized"
    r"|\bdown\b|\blost\b|not (accepted|measured|authorized)|false zero|retransm|left out"
)

Override = tuple[str, Mapping[str, object]]
Steps = Sequence[tuple[float | None, str]]


class Instant(str):
    """An expression that is evaluated once, at the end of the time range."""


# -- Kinds of panel


def stats(
    title, description, queries, *, unit, no_value, steps=(), overrides=(), trend=False, below=False
) -> stat.Panel:
    """Big numbers, one per series; with their `trend` behind them, and beside or `below` each other."""
    panel = (
        stat.Panel()
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.AREA if trend else common.BigValueGraphMode.NONE)
        .orientation(common.VizOrientation.HORIZONTAL if below else common.VizOrientation.VERTICAL)
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        .wide_layout(below)
        .reduce_options(_last())
    )
    return _finish(panel, title, description, _range_or_instant(queries), unit, no_value, steps, overrides)


def bars(title, description, queries, *, unit, no_value, steps=(), overrides=()) -> bargauge.Panel:
    """One horizontal bar per series, of the values at the end of the time range."""
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
    targets = [_target(legend, expr).instant() for legend, expr in queries.items()]
    return _finish(panel, title, description, targets, unit, no_value, steps, overrides)


def lines(
    title, description, queries, *, unit, no_value, steps=(), overrides=(), axis=""
) -> timeseries.Panel:
    """Lines over time, with the thresholds drawn where there are any; `axis` says what is counted on an axis without unit."""
    style = common.GraphThresholdsStyleMode.DASHED if steps else common.GraphThresholdsStyleMode.OFF
    panel = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(0)
        .min(0)
        .show_points(common.VisibilityMode.NEVER)
        .legend(_legend_list())
        .tooltip(_tooltip())
        .color_scheme(dashboard_builders.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
        .thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(style))
    )
    if axis:
        panel.axis_label(axis)
    if unit in ("short", "cps", "reqps"):
        panel.axis_soft_max(1)  # Zero is a line at the bottom, not one on a scale to a hundred.
    overrides = [*_line_colours(queries, overrides), *overrides]
    return _finish(panel, title, description, _range_or_instant(queries), unit, no_value, steps, overrides)


def _line_colours(legends: Iterable[str], overrides: Iterable[Override]) -> list[Override]:
    """Red for lines of what is bad by their names, others for the rest; those with labels keep Grafana's palette."""
    coloured = {name for name, settings in overrides if "color" in settings}
    plain = [legend for legend in legends if "{{" not in legend and legend not in coloured]
    bad = [legend for legend in plain if BAD.search(legend)]
    calm = [legend for legend in plain if legend not in bad]
    pairs = [
        *zip(bad, itertools.cycle(ALARMING), strict=False),
        *zip(calm, itertools.cycle(CALM), strict=False),
    ]
    return colours(dict(pairs))


def areas(
    title, description, queries, *, unit, no_value, overrides=(), shares=False, legend_table=False
) -> timeseries.Panel:
    """Areas on top of each other; with `shares` each as its share of their sum, so that they always fill 100 %.

    `legend_table` has the last value and the mean of each, on the right of a panel wide enough for it.
    """
    mode = common.StackingMode.PERCENT if shares else common.StackingMode.NORMAL
    panel = (
        lines(title, description, queries, unit=unit, no_value=no_value, overrides=overrides)
        .stacking(common_builders.StackingConfig().group("A").mode(mode))
        .fill_opacity(75)
        .line_width(0)
    )
    if legend_table:
        legend = common_builders.VizLegendOptions().show_legend(True).calcs(["lastNotNull", "mean"])
        legend.display_mode(common.LegendDisplayMode.TABLE).placement(common.LegendPlacement.RIGHT)
        panel.legend(legend.sort_by("Mean").sort_desc(True))
    if shares:
        # Grafana draws 0 to 100 % by itself; with explicit limits, some versions draw nothing (grafana/grafana#95581).
        panel.min(None)
    return panel


def table(
    title,
    description,
    columns,
    *,
    unit,
    no_value,
    first,
    sort,
    last=(),
    hide=(),
    steps=(),
    overrides=(),
    tall=False,
    pages=True,
) -> tables.Panel:
    """A table: the samples of all `columns` (name: expression) with the same labels are one row.

    `first` are the labels whose columns come before the values, and `last` those whose columns come after; `sort` is the
    column by which rows are sorted, the largest first, or with a minus in front the smallest, or several columns; `hide` leaves out labels
    and columns; `tall` rows have room for two lines of text. A table has `pages` of as many whole rows as it has room for,
    and says how many there are, unless its board has room for all the rows that it can have.
    """
    # Grafana's name for the values of each query.
    values = {
        f"Value #{_ref_id(at)}" if len(columns) > 1 else "Value": name for at, name in enumerate(columns)
    }
    hidden = [*hide, *(value for value, name in values.items() if name in hide)]
    order = {name: at for at, name in enumerate([*first, *values, *last])}
    organize = {
        "excludeByName": dict.fromkeys(("Time", *hidden), True),
        "indexByName": order,
        "renameByName": values,
    }
    panel = (
        tables.Panel()
        .show_header(True)
        .cell_height(common.TableCellHeight.LG if tall else common.TableCellHeight.SM)
        .min_width(60)
        .sort_by(
            common_builders.TableSortByFieldState().display_name(name.lstrip("-")).desc(name[0] != "-")
            for name in ((sort,) if isinstance(sort, str) else sort)
        )
    )
    if pages:
        panel.footer(common_builders.TableFooterOptions().show(False).enable_pagination(True))
    _transform(panel, merge={}, organize=organize)
    # A panel's unit and its text for no data would else be written into the cells of labels and into empty ones.
    for kind, settings in (("string", {"unit": "string", "noValue": "–"}), ("number", {"noValue": "–"})):
        panel.override_by_field_type(kind, _settings(settings))
    return _finish(panel, title, description, _table_targets(columns), unit, no_value, steps, overrides)


HOT = "#dd7f35"  # Of a slow rank in the heat map of the web page.


def heat_map(title, description, queries, *, unit, no_value, scale, axis) -> heatmap.Panel:
    """A line of cells per series, coloured from the lower value of `scale`, without colour, to the upper one."""
    colour = heatmap.HeatmapColorOptions().mode(heat.HeatmapColorMode.OPACITY).steps(64)
    panel = (
        heatmap.Panel()
        .calculate(False)
        .color(colour.fill(HOT).scale(heat.HeatmapColorScale.LINEAR).min(scale[0]).max(scale[1]))
        .cell_gap(1)
        .show_value(common.VisibilityMode.NEVER)
        .show_legend()
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .y_axis(heatmap.YAxisConfig().unit("none").axis_label(axis))
        .cell_values(heatmap.CellValues().unit(unit))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common.HeatmapCellLayout.AUTO))
    )
    return _finish(panel, title, description, _range_or_instant(queries), unit, no_value)


def states(title, description, queries, *, no_value, meanings, overrides=()) -> statetimeline.Panel:
    """A band per series over time; `meanings` has the (text, colour) of each number."""
    panel = (
        statetimeline.Panel()
        .merge_values(True)
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
        .line_width(0)
        .fill_opacity(80)
        .mappings([value_map(meanings)])
        .legend(_legend_list())
        .tooltip(_tooltip())
    )
    targets = _range_or_instant(queries)
    return _finish(panel, title, description, targets, "short", no_value, overrides=overrides)


def waterfall(title, description, bars_of, *, unit, no_value, series_colours) -> barchart.Panel:
    """Bars that begin where the one above ended.

    `bars_of` are (name, series, base, length) from the top: the base is an expression for the bar's start, None for zero,
    and the length one for what is visible; both give one sample without labels. A bar without a sample is left out.
    """
    of_series: dict[str, list[str]] = {BASE: []} | {series: [] for _, series, *_ in bars_of}
    for order, (name, series, base, length) in enumerate(bars_of):
        of_series[series].append(_bar(order, name, length))
        if base is not None:
            of_series[BASE].append(_bar(order, name, base))
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
        .legend(_legend_list())
        .tooltip(_tooltip())
    )
    values = {f"Value #{_ref_id(at)}": series for at, series in enumerate(of_series)}
    _transform(
        panel,
        merge={},
        sortBy={"fields": {}, "sort": [{"field": "order", "desc": False}]},
        organize={"excludeByName": {"Time": True, "order": True}, "indexByName": {}, "renameByName": values},
    )
    no_text = dashboard.DashboardRangeMapOptions(
        from_val=-1e9, to=1e9, result=dashboard.ValueMappingResult(text=" ")
    )
    invisible = {
        "color": {"mode": "fixed", "fixedColor": "transparent"},
        "custom.fillOpacity": 0,
        "custom.hideFrom": {"legend": True, "tooltip": True, "viz": False},
        "mappings": [dashboard.RangeMap(options=no_text)],
    }
    targets = _table_targets({series: " or ".join(found) for series, found in of_series.items()})
    overrides = [*colours(series_colours), (BASE, invisible)]
    return _finish(panel, title, description, targets, unit, no_value, overrides=overrides)


def _bar(order: int, name: str, expr: str) -> str:
    """The expression's sample, which has no labels, with the name and the order of its bar."""
    return f'label_replace(label_replace({expr}, "order", "{order:02}", "", ""), "step", "{name}", "", "")'


def annotation(
    name: str, expr: str, title: str, colour: str, text: str = "", at_value: bool = False
) -> dashboard_builders.AnnotationQuery:
    """A line across the panels of a board at each moment, or an area over each time, for which `expr` has a sample.

    With `at_value` the samples are the moments, in unix milliseconds, of one line for each series.
    """
    return (
        dashboard_builders.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(colour)
        .expr(expr)
        .step(INTERVAL_MIN)
        .title_format(title)
        .text_format(text)
        .use_value_for_time(at_value)
        .tag_keys("")
    )


# -- Overrides: settings of one series or column


def series(name: str, unit: str, steps: Steps = (), right: str | None = None) -> Override:
    """A series or column with another unit, its own thresholds, and an axis on the right.

    `right` is the text beside that axis: what is counted, or empty where the unit says it.
    """
    settings: dict[str, object] = {"unit": unit}
    settings |= {"percentunit": {"decimals": 1}, "none": {"decimals": 0}}.get(unit, {})
    if steps:
        settings["thresholds"] = _thresholds(steps).build()
    if right is not None:
        settings |= OTHER_AXIS | {"custom.axisLabel": right}
    # All zero would else be drawn on a scale to a hundred, or to 10 000 %.
    if right is not None and unit in ("percentunit", "cps", "short", "none"):
        settings["custom.axisSoftMax"] = 0.1 if unit == "percentunit" else 1
    return name, settings


def colours(of: Mapping[str, str]) -> list[Override]:
    """The same colours for series of these names wherever they appear."""
    return [(name, {"color": {"mode": "fixed", "fixedColor": colour}}) for name, colour in of.items()]


def widths(**pixels: int) -> list[Override]:
    """How wide columns are, by name with _ for a space."""
    return [(name.replace("_", " "), {"custom.width": width}) for name, width in pixels.items()]


def texts(name: str, meanings: Mapping, wrap: bool = False) -> Override:
    """Texts, or (text, colour), in the place of a column's values."""
    settings: dict[str, object] = {"mappings": [value_map(meanings)]}
    if wrap:
        # Grafana 12 and later read the second.
        settings |= {"custom.cellOptions": {"type": "auto", "wrapText": True}, "custom.wrapText": True}
    elif any(isinstance(text, tuple) for text in meanings.values()):
        settings["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
    return name, settings


def link(name: str, title: str, board: str, **variables: str) -> Override:
    """A link from a series or the cells of a column to another board, with the same time range and data source.

    The value of a variable names what Grafana inserts: "run" a variable of the current board, "label:rank" a label of
    the clicked line, "field:rank" a column of the clicked row.
    """
    kinds = {"": "{}", "label": "__field.labels.{}", "field": "__data.fields.{}"}
    query = "&".join(
        f"var-{variable}=${{{kinds[value.rpartition(':')[0]].format(value.rpartition(':')[2])}:percentencode}}"
        for variable, value in variables.items()
    )
    url = f"/d/{board}?${{datasource:queryparam}}&${{cluster:queryparam}}&{query}&${{__url_time_range}}"
    return name, {"links": [{"title": title, "url": url, "targetBlank": False}]}


# -- What panels have in common


WITH_EXEMPLARS = "goodput_step_duration_seconds_bucket"


def _target(legend: str, expr: str) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(str(expr)).legend_format(legend).datasource(DATASOURCE)
    return query.exemplar(True) if WITH_EXEMPLARS in str(expr) else query


def _range_or_instant(queries: Mapping[str, str]) -> list[prometheus.Dataquery]:
    targets = {legend: _target(legend, expr) for legend, expr in queries.items()}
    return [
        one.instant() if isinstance(queries[legend], Instant) else one.range()
        for legend, one in targets.items()
    ]


def _table_targets(columns: Mapping[str, str]) -> list[prometheus.Dataquery]:
    return [_target(name, expr).instant().format(PromQueryFormat.TABLE) for name, expr in columns.items()]


def _ref_id(index: int) -> str:
    """A, B, ..., Z, AA, AB, ...: the names that Grafana gives to the queries of a panel."""
    before, letter = divmod(index, 26)
    return (_ref_id(before - 1) if before else "") + chr(ord("A") + letter)


def _finish(
    panel, title, description, targets, unit, no_value, steps: Steps = (), overrides: Iterable[Override] = ()
):
    for at, target in enumerate(targets):
        panel.with_target(target.ref_id(_ref_id(at)))
    if unit == "percentunit":
        panel.decimals(1)
    for name, settings in overrides:
        override = panel.override_by_regexp if name.startswith("/") else panel.override_by_name
        override(name, _settings(settings))
    return (
        panel.title(title)
        .description(description)
        .datasource(DATASOURCE)
        .interval(INTERVAL_MIN)
        .unit(unit)
        .no_value(no_value)
        .thresholds(_thresholds(steps))
    )


def _settings(values: Mapping[str, object]) -> list[dashboard.DynamicConfigValue]:
    return [dashboard.DynamicConfigValue(id_val=key, value=value) for key, value in values.items()]


def _transform(panel, **options: dict) -> None:
    for name, one in options.items():
        panel.with_transformation(dashboard.DataTransformerConfig(id_val=name, options=one))


def _thresholds(steps: Steps) -> dashboard_builders.ThresholdsConfig:
    """(value, colour) ascending; the first value is None, for everything below the next."""
    found = [dashboard.Threshold(value=value, color=colour) for value, colour in steps or [(None, NEUTRAL)]]
    return dashboard_builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(found)


def value_map(meanings: Mapping) -> dashboard.ValueMap:
    """The text or (text, colour) of each value."""
    results = {}
    for at, (value, meaning) in enumerate(meanings.items()):
        text, colour = (meaning, None) if isinstance(meaning, str) else meaning
        results[str(value)] = dashboard.ValueMappingResult(text=text, color=colour, index=at)
    return dashboard.ValueMap(options=results)


def _last() -> common_builders.ReduceDataOptions:
    return common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _legend_list() -> common_builders.VizLegendOptions:
    legend = common_builders.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
    return legend.calcs([]).display_mode(common.LegendDisplayMode.LIST)


def _tooltip() -> common_builders.VizTooltipOptions:
    return (
        common_builders.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
