"""The generated dashboards are current, well formed, and read only series that exist."""

import json
import re
import subprocess
import sys

import pytest
import yaml
from dashboards import generate
from tests.servers import DASHBOARDS, REPOSITORY, RULES, expressions, series_of

from goodput.metrics import CATALOGUE
from goodput.page import PHASES

BOARDS = sorted(DASHBOARDS.glob("*.json"))
PANEL_TYPES = {"stat", "bargauge", "timeseries"}
# What every query of a board has to choose by, and what its variable `run` offers.
SELECTORS = {"goodput-run": 'run="$run"', "goodput-node": 'instance=~"$instance"'}
# Labels that Prometheus adds, and those of recording rules.
ADDED = {"instance", "job"}
RECORDED = ADDED | {"run", "state", "gpu", "resource", "kind", "xid", "class", "device", "port"}
# Section 6 of the design, in its words.
STATES = {
    *("productive", "loader", "h2d", "checkpoint", "evaluation", "communication", "straggler", "launch"),
    *("compile", "startup", "restore", "stall", "lost", "down", "queue", "unattributed", "unobserved"),
}


def panels():
    for path in BOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            panel["board"] = path.stem
            yield pytest.param(panel, id=f"{path.stem}-{panel['title'].replace(' ', '_')}")


def exposed_names() -> set[str]:
    """What Prometheus stores: the catalogue's names, histograms by their parts, and the recording rules."""
    names = {"up"}
    for metric in CATALOGUE.values():
        parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + part for part in parts}
    for group in yaml.safe_load((RULES / "recording.yml").read_text())["groups"]:
        names |= {rule["record"] for rule in group["rules"]}
    return names


def test_files_are_current():
    command = [sys.executable, "-m", "dashboards.generate", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_check_tells_a_file_that_is_not_current_and_writing_repairs_it(tmp_path):
    files = sorted(f"{uid}.json" for uid in SELECTORS)
    assert generate.write(tmp_path) == files
    assert generate.stale(tmp_path) == []
    (tmp_path / "goodput-run.json").write_text("{}")
    (tmp_path / "gone.json").write_text("{}")
    assert generate.stale(tmp_path) == ["gone.json", "goodput-run.json"]
    generate.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_generation_is_deterministic():
    assert generate.boards() == generate.boards()


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_board_is_whole(path):
    board = json.loads(path.read_text(encoding="utf-8"))
    assert board["uid"] == path.stem
    assert board["refresh"] == "10s"
    assert 1 <= len(board["panels"]) <= 15
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert (
        variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    )
    assert variables["run"]["query"]["query"] == "label_values(goodput_run_info, run)"


def test_node_board_offers_the_nodes_of_a_run_and_the_gpus_of_a_node():
    board = json.loads((DASHBOARDS / "goodput-node.json").read_text(encoding="utf-8"))
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert list(variables) == ["datasource", "run", "instance", "gpu"]
    for name in ("run", "instance", "gpu"):
        assert variables[name]["includeAll"] and variables[name]["allValue"] == ".*"
        assert variables[name]["current"]["value"] == "$__all"
    assert variables["instance"]["multi"] and variables["gpu"]["multi"]
    asked = [variables[name]["query"]["query"] for name in ("instance", "gpu")]
    assert "$run" in asked[0] and "$instance" in asked[1]
    for name in re.findall(r"goodput_\w+", " ".join(asked)):
        assert name in CATALOGUE


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_links_lead_to_a_board_and_keep_time_and_variables(path):
    links = json.loads(path.read_text(encoding="utf-8"))["links"]
    assert links
    for link in links:
        uid = link["url"].removeprefix("/d/")
        assert uid in SELECTORS and uid != path.stem
        assert link["type"] == "link" and link["keepTime"] and link["includeVars"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_fill_the_grid_without_overlap(path):
    taken = {}
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        place = panel["gridPos"]
        assert place["w"] > 0 and place["h"] > 0 and place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"], (
                    f"{panel['title']} at {x}, {y}"
                )
    height = max(y for _, y in taken) + 1
    assert len(taken) == 24 * height, "the board has holes"


@pytest.mark.parametrize("panel", list(panels()))
def test_panel_says_what_it_shows_and_what_to_do(panel):
    assert panel["type"] in PANEL_TYPES
    assert len(panel["description"]) > 80
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] and defaults["noValue"]
    steps = defaults["thresholds"]["steps"]
    assert steps[0]["value"] is None
    values = [step["value"] for step in steps[1:]]
    assert values == sorted(values)


@pytest.mark.parametrize("panel", list(panels()))
def test_panel_asks_the_data_source_variable(panel):
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == source
    references = [target["refId"] for target in panel["targets"]]
    assert references and len(set(references)) == len(references)
    for target in panel["targets"]:
        assert target["datasource"] == source
        assert SELECTORS[panel["board"]] in target["expr"]
        assert target["legendFormat"]


def test_overrides_match_a_legend():
    """An override by name that matches no series does nothing, silently."""
    for panel in (value.values[0] for value in panels()):
        legends = {target["legendFormat"] for target in panel["targets"]}
        for override in panel["fieldConfig"]["overrides"]:
            assert override["matcher"]["id"] == "byName"
            name = override["matcher"]["options"]
            assert name in legends or (name in STATES and "{{state}}" in legends), name


def test_states_of_an_account_panel_all_have_a_colour():
    for panel in (value.values[0] for value in panels()):
        overrides = {o["matcher"]["options"] for o in panel["fieldConfig"]["overrides"]}
        by_state = any("{{state}}" in target["legendFormat"] for target in panel["targets"])
        if by_state and overrides & STATES:
            assert overrides == STATES


@pytest.mark.parametrize("expression", expressions(), ids=lambda e: f"{e.kind}-{e.name.replace(' ', '_')}")
def test_expression_reads_only_series_and_labels_that_exist(expression):
    names = series_of(expression.text)
    assert names
    assert names <= exposed_names()
    for name, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}", expression.text):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        metric = CATALOGUE.get(re.sub(r"_(bucket|sum|count)$", "", name)) or CATALOGUE.get(name)
        assert asked <= (ADDED | set(metric.labels) if metric else RECORDED), f"{name}{{{matchers}}}"


@pytest.mark.parametrize("expression", expressions(), ids=lambda e: f"{e.kind}-{e.name.replace(' ', '_')}")
def test_expression_names_only_known_states_and_phases(expression):
    for label, known in (
        ("state", STATES),
        ("phase", set(PHASES)),
        ("status", {"running", "down", "finished"}),
    ):
        for _, values in re.findall(rf'\b{label}\s*(=~|!~|!=|=)\s*"([^"]*)"', expression.text):
            assert set(values.split("|")) <= known


def test_series_of_leaves_only_series():
    expr = """
        sum by (run, le) (rate(a_bucket{x="b or c",y=~"d"}[5m:1s])) / on (run) group_left (host) e:f:g_5m
        unless ignoring (z) clamp_min(h offset 5m, 1e3) > bool 0.7 and topk(3, i) != inf
    """
    assert series_of(expr) == {"a_bucket", "e:f:g_5m", "h", "i"}
