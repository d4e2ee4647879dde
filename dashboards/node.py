"""goodput / Node and GPU: what the hardware under a run does, and what is wrong with it.

In: series of goodput.metrics that the node agents serve, and recording rules of deploy/prometheus/recording.yml.
Out: one board of fifteen panels, read from the top: what is broken, how hard the GPUs work and in which phase,
what holds them back, and whether network, storage or host make them wait. Nodes and GPUs are chosen by variables;
what has a line per device is cut by topk, so the board costs the same for one GPU and for hundreds.

    python -m dashboards.generate
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from dashboards.node_panels import NODE, PANELS
from dashboards.panels import DATASOURCE, link

UID = "goodput-node"


def board() -> builders.Dashboard:
    dashboard = (
        builders.Dashboard("goodput / Node and GPU")
        .uid(UID)
        .description(
            "What do the GPUs, links, disks and the host under a run do, and what is wrong with them?"
        )
        .tags(["goodput"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(link("Run", "goodput-run"))
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("run", "Run", "label_values(goodput_run_info, run)").multi(False))
        # With a run chosen its nodes; with all, whose pattern matches an absent label too, every node.
        .with_variable(
            _variable(
                "instance",
                "Node",
                'label_values({__name__=~"goodput_rank_info|goodput_node_info",run=~"$run"}, instance)',
            ).multi(True)
        )
        .with_variable(
            _variable("gpu", "GPU", f"label_values(goodput_gpu_up{{{NODE}}}, gpu)").multi(True),
        )
    )
    for panel in PANELS:
        dashboard.with_panel(panel())
    return dashboard


def _variable(name: str, label: str, text: str) -> builders.QueryVariable:
    """A variable with All, which is chosen at first."""
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"qryType": 1, "query": text, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .definition(text)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )
