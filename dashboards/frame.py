"""What every board has around its panels: variables, links to the other boards, time and refresh.

In: a title, what the board answers, which variables it has, and its panels. Out: an SDK dashboard builder, and the
addresses by which a cell of a table or a point of a line leads to another board. An address keeps the time range and
the data source; the links at the top of a board keep every variable that both boards have. It knows no panel.

    frame("goodput-run", "Run", "...", variables=["run"], panels=PANELS)
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


def frame(
    uid: str,
    description: str,
    *,
    variables: Sequence[builders.QueryVariable],
    panels: Sequence[Callable],
    time_from: str = "now-1h",
    refresh: str = "10s",
    marks: Sequence[builders.AnnotationQuery] = (),
) -> builders.Dashboard:
    """A board with its variables, of which the data source is always the first, and its panels."""
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
    for panel in panels:
        dashboard.with_panel(panel())
    return dashboard


# -- Variables


def one_run() -> builders.QueryVariable:
    """The run that is shown; names that begin with a date sort newest first."""
    variable = _query("run", "Run", "label_values(goodput_run_info, run)")
    return variable.sort(models.VariableSort.ALPHABETICAL_DESC).include_all(False).multi(False)


def any_run() -> builders.QueryVariable:
    return _all(_query("run", "Run", "label_values(goodput_run_info, run)")).multi(False)


def nodes() -> builders.QueryVariable:
    """With a run chosen its nodes; with all, whose pattern matches an absent label too, every node.

    All stands for the nodes that are listed, not for every one there is, so that a run's board shows the run's.
    """
    return _all(_query("instance", "Node", NODES)).all_value("").multi(True)


def agents() -> builders.QueryVariable:
    return _all(_query("instance", "Node", "label_values(goodput_node_info, instance)")).multi(True)


def gpus() -> builders.QueryVariable:
    return _all(_query("gpu", "GPU", 'label_values(goodput_gpu_up{instance=~"$instance"}, gpu)')).multi(True)


def rank() -> builders.TextBoxVariable:
    """A box to write into: a list of ten thousand ranks would be of no use, and dear."""
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
    """With All, which is chosen at first."""
    every = models.VariableOption(selected=True, text="All", value="$__all")
    return variable.include_all(True).all_value(".*").current(every)


# -- Addresses


def address(uid: str, values: Mapping[str, str]) -> str:
    """The address of a board with these values for its variables, for the same time and data source.

    A value is what Grafana puts in: "run" is that variable of the board the link is on, "label:rank" a label of the
    line that was pointed at, "field:rank" a column of the row.
    """
    asked = "&".join(f"var-{name}=${{{_source(value)}:percentencode}}" for name, value in values.items())
    return f"/d/{uid}?${{datasource:queryparam}}&{asked}&${{__url_time_range}}"


def _source(value: str) -> str:
    kind, _, name = value.rpartition(":")
    return {"": name, "label": f"__field.labels.{name}", "field": f"__data.fields.{name}"}[kind]
