"""What every board has around its panels: variables, links to the other boards, time and refresh.

Links to another board keep the time range and the data source; those at the top of a board keep every variable that
both boards have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from dashboards.panels import DATASOURCE, link

# The boards from the whole down to the part, and the stack that watches them.
BOARDS = {
    "goodput-fleet": "Fleet",
    "goodput-run": "Run",
    "goodput-node": "Node and GPU",
    "goodput-host": "Host and storage",
    "goodput-rank": "Rank",
    "goodput-stack": "The stack itself",
}
NODES = 'label_values({__name__=~"goodput_rank_info|goodput_node_info",run=~"$run"}, instance)'


def build_board(
    uid: str,
    description: str,
    *,
    variables: Sequence[builders.QueryVariable],
    panels: Sequence[Callable],
    time_from: str = "now-1h",
    refresh: str = "10s",
    marks: Sequence[builders.AnnotationQuery] = (),
) -> builders.Dashboard:
    """A board; the data source is its first variable."""
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
            dashboard.link(link(title, f"{other}"))
    for variable in variables:
        dashboard.with_variable(variable)
    for one in marks:
        dashboard.annotation(one)
    # In the order of their places: the SDK takes (0, 0) for no place, and lets such a panel follow the one before.
    for panel in sorted((panel() for panel in panels), key=_place):
        dashboard.with_panel(panel)
    return dashboard


def _place(panel) -> tuple[int, int]:
    place = panel.build().grid_pos
    return place.y, place.x


# -- Variables


def run_variable() -> builders.QueryVariable:
    """The run that is shown; names that begin with a date sort newest first."""
    variable = _query("run", "Run", "label_values(goodput_run_info, run)")
    return variable.sort(models.VariableSort.ALPHABETICAL_DESC).include_all(False).multi(False)


def optional_run_variable() -> builders.QueryVariable:
    return _all(_query("run", "Run", "label_values(goodput_run_info, run)")).multi(False)


def node_variable() -> builders.QueryVariable:
    """The chosen run's nodes; with all runs, whose pattern matches an absent label too, every node.

    "All" stands for the listed nodes, not for every existing one, so that a run's board shows its own.
    """
    return _all(_query("instance", "Node", NODES)).all_value("").multi(True)


def agent_variable() -> builders.QueryVariable:
    return _all(_query("instance", "Node", "label_values(goodput_node_info, instance)")).multi(True)


def gpu_variable() -> builders.QueryVariable:
    return _all(_query("gpu", "GPU", 'label_values(goodput_gpu_up{instance=~"$instance"}, gpu)')).multi(True)


def rank_variable() -> builders.TextBoxVariable:
    """A text box: a list of ten thousand ranks would be useless and slow."""
    return builders.TextBoxVariable("rank").label("Rank").default_value("0")


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


def _all(variable: builders.QueryVariable) -> builders.QueryVariable:
    """With the option "All", which is chosen at first."""
    every = models.VariableOption(selected=True, text="All", value="$__all")
    return variable.include_all(True).all_value(".*").current(every)


# -- Addresses


def address(uid: str, values: Mapping[str, str]) -> str:
    """The address of a board with these values for its variables, with the same time and data source.

    A value names what Grafana inserts: "run" a variable of the current board, "label:rank" a label of the clicked line,
    "field:rank" a column of the clicked row.
    """
    variables = "&".join(f"var-{name}=${{{_source(value)}:percentencode}}" for name, value in values.items())
    return f"/d/{uid}?${{datasource:queryparam}}&{variables}&${{__url_time_range}}"


def _source(value: str) -> str:
    kind, _, name = value.rpartition(":")
    return {"": name, "label": f"__field.labels.{name}", "field": f"__data.fields.{name}"}[kind]
