"""What every board has around its panels: layout, variables, links to the other boards, time range and refresh.

Links to another board keep the time range and the data source; those at the top of a board keep every variable that
both boards have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from dashboards.panels import DATASOURCE

# From the cluster down to one rank, and the stack that observes them.
BOARDS = {
    "goodput-fleet": "Fleet",
    "goodput-run": "Run",
    "goodput-communication": "Communication",
    "goodput-node": "Node and GPU",
    "goodput-gpu": "GPU hardware",
    "goodput-host": "Host and storage",
    "goodput-rank": "Rank",
    "goodput-stack": "The stack itself",
}


class CollapsedRow(NamedTuple):
    """Panels that are empty in the ordinary case, under a title at the end of a board; a click on it shows them.

    Grafana runs their queries only then. The title says what a run or node must have for them to have data.
    """

    title: str
    panels: Sequence
    layout: Sequence[tuple[int, ...]]


def build_board(
    uid: str,
    description: str,
    panels: Sequence,
    layout: Sequence[tuple[int, ...]],
    *,
    rows: Sequence[CollapsedRow] = (),
    variables: Sequence[builders.QueryVariable | builders.TextBoxVariable] = (),
    annotations: Sequence[builders.AnnotationQuery] = (),
    time_from: str = "now-1h",
    refresh: str = "10s",
) -> builders.Dashboard:
    """A board whose panels fill a grid of 24 columns in their order.

    `layout` has a row of panels each: its height and the width of each panel. The collapsed `rows` follow, one line of the
    grid each. The data source and the cluster are the first variables.
    """
    dashboard = (
        builders.Dashboard(f"goodput / {BOARDS[uid]}")
        .uid(uid)
        .description(description)
        .tags(["goodput"])
        .time(time_from, "now")
        .refresh(refresh)
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .editable()
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for other, title in BOARDS.items():
        if other != uid:
            link = builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(f"/d/{other}")
            dashboard.link(link.icon("dashboard").keep_time(True).include_vars(True))
    for variable in (CLUSTER, *variables):
        dashboard.with_variable(variable)
    for one in annotations:
        dashboard.annotation(one)
    for panel, place in zip(panels, _places(layout), strict=True):
        dashboard.with_panel(panel.grid_pos(place))
    bottom = sum(height for height, *_ in layout)
    for y, row in enumerate(rows, bottom):
        built = builders.Row(row.title).grid_pos(models.GridPos(x=0, y=y, w=24, h=1))
        for panel, place in zip(row.panels, _places(row.layout, y + 1), strict=True):
            built.with_panel(panel.grid_pos(place))
        dashboard.with_row(built)
    return dashboard


def _places(layout: Sequence[tuple[int, ...]], top: int = 0) -> list[models.GridPos]:
    places, y = [], top
    for height, *widths in layout:
        for at, width in enumerate(widths):
            places.append(models.GridPos(x=sum(widths[:at]), y=y, w=width, h=height))
        y += height
    return places


# -- Variables


def _query(name: str, label: str, text: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"qryType": 1, "query": text, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .definition(text)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
    )


def _all(name: str, label: str, text: str) -> builders.QueryVariable:
    """With the option "All", which is the default."""
    every = models.VariableOption(selected=True, text="All", value="$__all")
    return _query(name, label, text).include_all(True).all_value(".*").current(every).multi(True)


# Only targets of several clusters in one Prometheus have the label; see clusters.py.
CLUSTER = _all(
    "cluster", "Cluster", 'label_values({__name__=~"goodput_run_info|goodput_node_info"}, cluster)'
).multi(False)
_RUNS = "label_values(goodput_run_info, run)"
# Names that begin with a date sort newest first.
RUN = _query("run", "Run", _RUNS).sort(models.VariableSort.ALPHABETICAL_DESC).include_all(False).multi(False)
OPTIONAL_RUN = _all("run", "Run", _RUNS).multi(False)
# The chosen run's nodes; with all runs, whose pattern matches an absent label too, every node. "All" stands for the
# listed nodes, not for every existing one, so that a run's board shows its own.
_OF_RUN = '__name__=~"goodput_rank_info|goodput_node_info",run=~"$run"'
_NODES = f'label_values({{{_OF_RUN},host=~"$node"}}, instance)'
# A node by the name of its host, as ranks report it; Prometheus's name for its agent has a port and may be an address.
HOST = _all("node", "Host", f"label_values({{{_OF_RUN}}}, host)")
NODE = _all("instance", "Node", _NODES).all_value("")
AGENT = _all("instance", "Node", "label_values(goodput_node_info, instance)")
GPU = _all("gpu", "GPU", 'label_values(goodput_gpu_up{instance=~"$instance"}, gpu)')
# A text box: a list of ten thousand ranks would be useless and slow.
RANK = builders.TextBoxVariable("rank").label("Rank").default_value("0")
