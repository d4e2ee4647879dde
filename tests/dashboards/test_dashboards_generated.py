"""The generated dashboards are current, well formed, and read only series that exist."""

import functools
import itertools
import json
import re
import subprocess
import sys

import pytest
import yaml
from dashboards import generate
from dashboards import panels as kinds
from dashboards.clusters import MATCHER, in_cluster
from dashboards.rows import collapsed_rows, panels_of
from support.servers.servers import DASHBOARDS, REPOSITORY, RULES, expressions, series_of

from goodput.account import FINAL_STATUSES
from goodput.causes import general
from goodput.metrics import CATALOGUE
from goodput.rank_page.page import PHASES

BOARDS = sorted(DASHBOARDS.glob("*.json"))
MODELS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in BOARDS}
PANEL_TYPES = {"stat", "bargauge", "timeseries", "table", "heatmap", "barchart", "state-timeline"}
# The variables of each board besides the data source, and the selector that every query of a board must have.
VARIABLES = {
    "goodput-fleet": ["cluster"],
    "goodput-run": ["cluster", "run"],
    "goodput-communication": ["cluster", "run"],
    "goodput-node": ["cluster", "run", "node", "instance", "gpu"],
    "goodput-gpu": ["cluster", "run", "node", "instance", "gpu"],
    "goodput-host": ["cluster", "run", "node", "instance"],
    "goodput-rank": ["cluster", "run", "rank"],
    "goodput-stack": ["cluster", "run", "instance"],
}
SELECTORS = {
    "goodput-run": 'run="$run"',
    "goodput-communication": 'run="$run"',
    "goodput-node": 'instance=~"$instance"',
    "goodput-gpu": 'instance=~"$instance"',
    "goodput-host": 'instance=~"$instance"',
    "goodput-rank": 'run="$run"',
}
# Labels that Prometheus adds, and those of recording rules.
ADDED = {"cluster", "instance", "job"}
RECORDED = ADDED | {
    *("run", "rank", "state", "gpu", "resource", "kind", "xid", "class", "device", "port", "clock")
}
# Series that alerts read only to find the owner.
JOINED = {
    *("goodput_run_info", "goodput_node_info", "goodput_rank_alive", "goodput_rank_info"),
    "goodput_gpu_rank_info",
}
PARTS = {"storage", "decode", "collate", "cpus", "queue", "startup", "idle", "unknown", "none"}
PARTS |= {"live", "dead", "rejected", "late ranks", "transfer", "not known"}
# Kinds of memory, modes of processors, routes.
PARTS |= {"total", "available", "cached", "dirty", "shared", "ingest"}
PARTS |= {"user", "nice", "system", "iowait", "irq", "softirq", "steal"}
STATES = {
    *(
        "productive",
        "loader",
        "h2d",
        "checkpoint",
        "evaluation",
        "rollout",
        "communication",
        "straggler",
        "launch",
    ),
    "bubble",
    *("compile", "startup", "restore", "stall", "lost", "down", "queue", "unattributed", "unobserved"),
}


def panels():
    for uid, board in MODELS.items():
        for panel in panels_of(board):
            yield pytest.param({**panel, "board": uid}, id=f"{uid}-{panel['title'].replace(' ', '_')}")


def every_panel():
    return [value.values[0] for value in panels()]


def data_links():
    """(board, panel, address) of each link of a panel."""
    for panel in every_panel():
        for override in panel["fieldConfig"]["overrides"]:
            for one in override["properties"]:
                for link in one["value"] if one["id"] == "links" else []:
                    yield panel["board"], panel, link["url"]


@functools.cache
def exposed_names() -> set[str]:
    """The names in Prometheus: the catalogue's, the parts of histograms, and the recording rules."""
    names = {"up"}
    for metric in CATALOGUE.values():
        parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + part for part in parts}
    for group in yaml.safe_load((RULES / "recording.yml").read_text())["groups"]:
        names |= {rule["record"] for rule in group["rules"]}
    return names


def test_files_are_current():
    command = [sys.executable, "-m", "dashboards.generate", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_check_finds_stale_file_and_write_repairs_it(tmp_path):
    files = sorted(f"{uid}.json" for uid in VARIABLES)
    assert generate.write(tmp_path) == files
    assert generate.stale(tmp_path) == []
    (tmp_path / "goodput-run.json").write_text("{}")
    (tmp_path / "gone.json").write_text("{}")
    assert generate.stale(tmp_path) == ["gone.json", "goodput-run.json"]
    generate.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_generation_is_deterministic():
    assert generate.boards() == generate.boards()


@pytest.mark.parametrize("count, last", [(8, "H"), (9, "I"), (26, "Z"), (27, "AA"), (703, "AAA")])
def test_panel_keeps_every_query(count, last):
    """And a table or waterfall names the values of each, whatever their number."""
    queries = {f"q{number}": f"x{number}" for number in range(count)}
    common = {"unit": "short", "no_value": "none"}
    built = [
        kinds.lines("T", "D", queries, **common),
        kinds.bars("T", "D", queries, **common),
        kinds.table("T", "D", queries, first=[], sort="q0", hide=(f"q{count - 1}",), **common),
    ]
    for panel in (builder.build() for builder in built):
        assert [target.expr for target in panel.targets] == list(queries.values())
        references = [target.ref_id for target in panel.targets]
        assert len(set(references)) == count and references[-1] == last
    columns = panel.transformations[-1].options
    assert columns["renameByName"] == {
        f"Value #{ref}": name for ref, name in zip(references, queries, strict=True)
    }
    assert columns["excludeByName"].get(f"Value #{last}") is True
    steps = [(name, name, None, expr) for name, expr in list(queries.items())[1:]]
    waterfall = kinds.waterfall("T", "D", steps, series_colours={}, **common).build()
    named = waterfall.transformations[-1].options["renameByName"]
    assert len(waterfall.targets) == count and len(named) == count and named[f"Value #{last}"] == steps[-1][1]


@pytest.mark.parametrize(
    "expr, limited",
    [
        ("up", "up{C}"),
        ("up{}", "up{C}"),
        ('up{job="a, by (run) {b}", }', 'up{job="a, by (run) {b}",C}'),
        ("sum by (run) (x)", "sum by (cluster, run) (x{C})"),
        ('sum by (cluster, run) (x{cluster="a"})', 'sum by (cluster, run) (x{cluster="a"})'),
        ("sum by (le) (rate(x_bucket[5m])) * 2e3", "sum by (le) (rate(x_bucket{C}[5m])) * 2e3"),
        ("sum without (run) (x) unless y", "sum without (run) (x{C}) unless y{C}"),
        (
            "a and on (instance) b * on (rank) group_left (host) c",
            "a{C} and on (cluster, instance) b{C} * on (rank) group_left (host) c{C}",
        ),
        (
            'label_replace(x offset 5m, "what", "y", "", "") or vector(1)',
            'label_replace(x{C} offset 5m, "what", "y", "", "") or vector(1)',
        ),
        (
            "topk(3, avg_over_time((x)[$__range:$i] @ end()))",
            "topk(3, avg_over_time((x{C})[$__range:$i] @ end()))",
        ),
        ("run:a:ratio_5m / on (state) ${v:raw}", "run:a:ratio_5m{C} / on (state) ${v:raw}"),
    ],
)
def test_query_reads_only_the_chosen_cluster(expr, limited):
    assert in_cluster(expr) == limited.replace("C}", MATCHER + "}")


def test_expected_boards_exist():
    assert set(MODELS) == set(VARIABLES)
    assert len({board["title"] for board in MODELS.values()}) == len(MODELS)


@pytest.mark.parametrize("uid", MODELS)
def test_board_is_whole(uid):
    board = MODELS[uid]
    assert board["uid"] == uid
    assert board["refresh"] in ("10s", "1m")
    assert 1 <= len(board["panels"]) <= 18, "without those of collapsed rows"
    panels_and_rows = [*panels_of(board), *collapsed_rows(board)]
    assert [one["id"] for one in panels_and_rows] == list(range(1, len(panels_and_rows) + 1))
    assert len({one["title"] for one in panels_and_rows}) == len(panels_and_rows)
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert list(variables) == ["datasource", *VARIABLES[uid]]
    assert (
        variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    )
    if "run" in variables:
        runs = 'label_values(goodput_run_info{cluster=~"$cluster"}, run)'
        assert variables["run"]["query"]["query"] == runs


@pytest.mark.parametrize("uid", MODELS)
def test_variables_are_bounded_and_read_series_that_exist(uid):
    """Lists of runs, nodes or GPUs may be long; one of ranks would be too long."""
    known = set(VARIABLES[uid])
    for variable in MODELS[uid]["templating"]["list"][1:]:
        if variable["name"] == "rank":
            assert variable["type"] == "textbox" and variable["query"] == "0"
            continue
        assert variable["type"] == "query"
        text = variable["query"]["query"]
        label = re.search(r", (cluster|run|host|instance|gpu)\)$", text)[1]
        assert set(re.findall(r"goodput_\w+", text)) <= set(CATALOGUE)
        assert set(re.findall(r"\$(\w+)", text)) <= known
        if variable.get("includeAll"):
            # "All" nodes are those listed for the run; GPUs would be too many to list in a query.
            listed = variable["name"] == "instance" and uid in ("goodput-node", "goodput-gpu", "goodput-host")
            assert (variable.get("allValue") or None) == (None if listed else ".*")
            assert variable["current"]["value"] == "$__all"
            assert f'{label}=~"${variable["name"]}"' in json.dumps(MODELS[uid]).replace("\\", "")


def test_node_board_variables_narrow_to_run_and_node():
    variables = {one["name"]: one for one in MODELS["goodput-node"]["templating"]["list"]}
    assert variables["instance"]["multi"] and variables["gpu"]["multi"]
    queries = [variables[name]["query"]["query"] for name in ("instance", "gpu")]
    assert "$run" in queries[0] and "$node" in queries[0] and "$instance" in queries[1]


@pytest.mark.parametrize("uid", MODELS)
def test_boards_link_to_each_other(uid):
    links = MODELS[uid]["links"]
    assert {link["url"] for link in links} == {f"/d/{other}" for other in MODELS if other != uid}
    for link in links:
        assert link["type"] == "link" and link["keepTime"] and link["includeVars"]
        assert link["title"] in MODELS[link["url"].removeprefix("/d/")]["title"]


def test_panel_links_resolve():
    found = list(data_links())
    assert len(found) > 15
    for board, panel, url in found:
        uid, _, query = url.removeprefix("/d/").partition("?")
        assert uid in MODELS, url
        assert "${__url_time_range}" in query and "${datasource:queryparam}" in query
        given = re.findall(r"var-(\w+)=\$\{([^}]*):percentencode\}", query)
        assert len(given) == query.count("var-") > 0, url
        assert {name for name, _ in given} <= set(VARIABLES[uid]), url
        for _, source in given:
            if source.startswith("__data.fields."):
                # A label of the rows: named among the columns, before the values.
                organize = next(one for one in panel["transformations"] if one["id"] == "organize")
                assert source.removeprefix("__data.fields.") in organize["options"]["indexByName"], url
            elif source.startswith("__field.labels."):
                label = source.removeprefix("__field.labels.")
                assert any(
                    "{{" + label + "}}" in target["legendFormat"] or label in target["expr"]
                    for target in panel["targets"]
                )
            else:
                assert source in VARIABLES[board], url


def alerts():
    for name in yaml.safe_load((RULES / "prometheus.yml").read_text())["rule_files"]:
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            yield from (rule for rule in group["rules"] if "alert" in rule)


def test_links_of_alerts_resolve():
    """To a panel that shows one of the series that the alert reads, directly or through recording rules."""
    made_of = {e.name: series_of(e.text) for e in expressions() if e.kind == "record"}

    def roots(names):
        """The catalogue's series behind these; a rule may read itself."""
        found, todo = set(), list(names)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += made_of.get(name, ())
        return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found - set(made_of)}

    found = list(alerts())
    assert len(found) > 40
    for rule in found:
        url = rule["annotations"]["dashboard_url"]
        uid, _, query = url.partition("/d/")[2].partition("?")
        assert uid in MODELS, url
        given = re.findall(r"([\w-]+)=", re.sub(r"\{\{.*?\}\}", "", query))
        assert {name.removeprefix("var-") for name in given} <= {*VARIABLES[uid], "viewPanel"}, url
        (number,) = re.findall(r"viewPanel=(\d+)", url)
        (panel,) = [one for one in panels_of(MODELS[uid]) if one["id"] == int(number)]
        shown = set().union(*(series_of(target["expr"]) for target in panel["targets"]))
        about = roots(series_of(rule["expr"])) - JOINED
        # Faults of GPUs and links are also events.
        assert roots(shown) & {*about, "goodput_health_events_total"}, (rule["alert"], panel["title"])


def test_drill_down_from_fleet_to_rank_and_node():
    ways = {(board, url.removeprefix("/d/").partition("?")[0]) for board, _, url in data_links()}
    down = ["goodput-fleet", "goodput-run", "goodput-node"]
    assert set(itertools.pairwise(down)) <= ways
    assert {("goodput-fleet", "goodput-node"), ("goodput-run", "goodput-rank")} <= ways
    assert {("goodput-node", "goodput-rank"), ("goodput-rank", "goodput-node")} <= ways


def assert_no_holes(panels, top):
    """The panels' places, from the line `top` of the grid on, fill whole lines and do not overlap."""
    taken = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["w"] > 0 and place["h"] > 0 and place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"], (
                    f"{panel['title']} at {x}, {y}"
                )
    assert min(y for _, y in taken) == top
    assert len(taken) == 24 * (max(y for _, y in taken) + 1 - top), "the board has holes"


@pytest.mark.parametrize("uid", MODELS)
def test_panels_fill_the_grid_without_overlap(uid):
    """The panels of a collapsed row take no place until they are shown, and then begin below its title."""
    assert_no_holes(MODELS[uid]["panels"], 0)
    for row in collapsed_rows(MODELS[uid]):
        assert row["collapsed"] is True and row["gridPos"]["h"] == 1
        assert_no_holes(row["panels"], row["gridPos"]["y"] + 1)


@pytest.mark.parametrize("panel", list(panels()))
def test_panel_has_title_description_and_unit(panel):
    assert panel["type"] in PANEL_TYPES
    assert 80 < len(panel["description"]) < 600
    assert panel["description"].count(". ") >= 1, "what it shows, and what to do"
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] and defaults["noValue"]
    steps = defaults["thresholds"]["steps"]
    assert steps[0]["value"] is None
    values = [step["value"] for step in steps[1:]]
    assert values == sorted(values)


@pytest.mark.parametrize("panel", list(panels()))
def test_panel_queries_use_the_data_source_variable(panel):
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == source
    references = [target["refId"] for target in panel["targets"]]
    assert references and len(set(references)) == len(references)
    for target in panel["targets"]:
        assert target["datasource"] == source
        assert SELECTORS.get(panel["board"], "") in target["expr"]
        assert target["expr"].count('cluster=~"$cluster"') >= len(series_of(target["expr"])) > 0
        assert target["legendFormat"]
        assert set(re.findall(r"\$([a-z]\w*)", target["expr"])) <= set(VARIABLES[panel["board"]])
        if panel["type"] in ("table", "barchart"):
            assert target["format"] == "table" and target["instant"]


# Labels by which a cluster of ten thousand ranks has more than a screen's worth of series.
MANY = {"rank", "instance", "host", "gpu", "run", "attempt", "worker", "pid", "mount"}
# What bounds them: topk or bottomk, the aggregator's limit of sixteen, or that a run has one culprit.
BOUNDED = (
    r"\b(topk|bottomk)\(|goodput_restart_\w+|goodput_hang_culprit_seconds|goodput_rank_missing_seconds|node_kind:open_health"
    r"|goodput_straggler_culprit_slowness_ratio|goodput_straggler_slow_(issue|link)_\w+"
)


@pytest.mark.parametrize("panel", list(panels()))
def test_panel_has_a_bound_on_its_lines(panel):
    """No query draws a line for each rank or node: they are aggregated, or the largest are chosen."""
    for target in panel["targets"]:
        expr = target["expr"]
        kept = set()
        for labels in re.findall(r"\bby\s*\(([^)]*)\)", expr):
            kept |= {label.strip() for label in labels.split(",")}
        shown = kept & MANY & set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        if panel["type"] == "table":
            shown = kept & MANY
        if panel["board"] == "goodput-rank":
            shown -= {"run", "rank", "instance", "host", "gpu", "attempt", "pid"}
        if "goodput_aggregator_" in expr:
            shown -= {"instance"}
        if shown:
            assert re.search(BOUNDED, expr), expr
            # Chosen once for the time range: topk() in a range query chooses anew at each moment, and draws any number.
            few = "goodput_aggregator_" in expr
            assert panel["type"] in ("table", "bargauge") or "@ end()" in expr or few, expr
        if panel["type"] != "table":
            # Without an aggregation a series has every label.
            assert re.search(
                r"\b(sum|max|min|avg|count|group|quantile|topk|bottomk)\b|^(run|cluster|\()|histogram", expr
            ), expr


def test_overrides_match_a_legend_or_a_column():
    """Grafana silently ignores an override that matches no series."""
    for panel in every_panel():
        legends = {target["legendFormat"] for target in panel["targets"]}
        columns = set()
        for one in panel.get("transformations", []):
            columns |= set(one.get("options", {}).get("indexByName", {}))
        for override in panel["fieldConfig"]["overrides"]:
            name = override["matcher"]["options"]
            if override["matcher"]["id"] == "byRegexp":
                assert any(re.match(name[1:-1], legend) for legend in legends), name
                continue
            if override["matcher"]["id"] == "byType":
                assert panel["type"] == "table" and name in ("string", "number")
                continue
            assert override["matcher"]["id"] == "byName"
            patterns = {re.sub(r"\\{\\{\w+\\}\\}", r"(\\w+)", re.escape(legend)) for legend in legends}
            by_label = any(
                re.fullmatch(pattern, name) for pattern in patterns if "(" in pattern and pattern != r"(\w+)"
            )
            by_value = r"(\w+)" in patterns and name in STATES | set(PHASES) | PARTS
            assert name in legends | columns or by_label or by_value, (
                panel["title"],
                name,
            )


def test_columns_of_tables_come_from_their_queries():
    """The first, hidden and sort columns exist."""
    for panel in every_panel():
        if panel["type"] != "table":
            continue
        organize = next(one["options"] for one in panel["transformations"] if one["id"] == "organize")
        names = set(organize["renameByName"].values())
        assert names == {target["legendFormat"] for target in panel["targets"]}
        text = " ".join(target["expr"] for target in panel["targets"])
        for label in set(organize["indexByName"]) - set(organize["renameByName"]):
            assert re.search(rf"\b{label}\b", text), (panel["title"], label)
        for by in panel["options"]["sortBy"]:
            assert by["displayName"] in names | set(organize["indexByName"])


def test_waterfall_bars_join():
    """Each lost bar ends where the bar above it ends, and begins where the one below ends."""
    (panel,) = [one for one in panels_of(MODELS["goodput-run"]) if one["type"] == "barchart"]
    bars = {}
    for target in panel["targets"]:
        for expr, order, step in re.findall(
            r'label_replace\(label_replace\((.*?), "order", "(\d\d)", "", ""\), "step", "([^"]*)", "", ""\)',
            target["expr"],
        ):
            bars.setdefault((order, step), {})[target["legendFormat"]] = expr
    given = {"availability": 0.9, "goodput": 0.63, "mfu": 0.31}

    def value(expr: str) -> float:
        for name, number in given.items():
            expr = expr.replace(f'max(goodput_{name}_ratio{{run="$run",cluster=~"$cluster"}})', str(number))
        return eval(expr, {"clamp_min": max})

    tops = []
    for _, series in sorted(bars.items()):
        base = value(series.pop("base", "0"))
        ((name, length),) = series.items()
        tops.append((base, base + value(length), name == "left"))
    left = [top for _, top, is_left in tops if is_left]
    assert left == pytest.approx([1, 0.9, 0.63, 0.31])
    for before, gone, after in zip(tops[::2], tops[1::2], tops[2::2], strict=False):
        assert gone[1] == pytest.approx(before[1]) and gone[0] == pytest.approx(after[1])
    assert min(bars)[1] == "peak"


def test_every_cause_has_its_advice_on_the_run_board():
    (panel,) = [one for one in panels_of(MODELS["goodput-run"]) if one["title"].startswith("Leading causes")]
    (override,) = [o for o in panel["fieldConfig"]["overrides"] if o["matcher"]["options"] == "advice"]
    (mapping,) = next(one["value"] for one in override["properties"] if one["id"] == "mappings")
    advice = {state: result["text"] for state, result in mapping["options"].items()}
    assert advice == general()
    assert set(advice) == STATES - {"productive"}
    assert all(len(text) > 40 and text.endswith(".") for text in advice.values())


def test_leading_causes_stand_in_the_pages_order():
    (panel,) = [one for one in panels_of(MODELS["goodput-run"]) if one["title"].startswith("Leading causes")]
    assert panel["options"]["sortBy"] == [{"displayName": "order", "desc": False}]
    (order,) = [one for one in panel["targets"] if one["legendFormat"] == "order"]
    assert order["expr"].startswith('max by (state) (goodput_cause_order{run="$run",cluster=~"$cluster"})')


def test_run_board_has_its_annotations():
    marks = {one["name"]: one for one in MODELS["goodput-run"]["annotations"]["list"]}
    of_stories = {
        "Restarts",
        "Stalls",
        "Hangs",
        "Hung collectives",
        "Slow ranks",
        "Slow stages",
        "Slower",
        "Faster",
        "Hardware",
        "Story",
    }
    assert set(marks) == of_stories | {"Checkpoints"}
    for one in marks.values():
        assert one["enable"] and one["expr"] and one["titleFormat"] and 'run="$run"' in one["expr"]
        # A title has labels of the expression alone.
        for label in re.findall(r"\{\{(\w+)\}\}", one["titleFormat"]):
            assert re.search(rf"\bby \([^)]*\b{label}\b", one["expr"]), one["name"]


def test_run_board_shows_the_story_with_costs_and_claims():
    """Its samples are the moments of the events, in ms as Grafana takes them; the others are marked when they are sampled."""
    marks = {one["name"]: one for one in MODELS["goodput-run"]["annotations"]["list"]}
    story = marks.pop("Story")
    assert story["expr"].startswith(
        "1000 * max by (kind, title, cost, claims) (goodput_run_event_timestamp_seconds{"
    )
    assert (story["useValueForTime"], story["textFormat"]) == (True, "{{cost}} {{claims}}")
    assert not any(one["useValueForTime"] or one["textFormat"] for one in marks.values())


def test_step_times_of_a_rank_show_exemplars():
    """Those of the agent's histogram, which is the only one that has some."""
    for board in MODELS.values():
        for target in (one for panel in panels_of(board) for one in panel["targets"]):
            has_some = "goodput_step_duration_seconds_bucket" in target["expr"]
            assert target.get("exemplar", False) == has_some
    (panel,) = [p for p in panels_of(MODELS["goodput-rank"]) if p["title"].startswith("Step time: this rank")]
    assert any(target.get("exemplar") for target in panel["targets"])


def test_every_series_is_used_by_a_board_or_alert():
    read = set()
    for expression in expressions():
        read |= series_of(expression.text)
    read |= {re.sub(r"_(bucket|sum|count)$", "", name) for name in read}
    assert sorted(set(CATALOGUE) - read) == []


def test_every_recording_rule_is_read():
    """By a board, an alert or another rule."""
    read = {}
    for expression in expressions():
        for name in series_of(expression.text):
            read.setdefault(name, set()).add(expression.name)
    recorded = {e.name for e in expressions() if e.kind == "record" and e.group.startswith("goodput_boards")}
    assert recorded
    for name in recorded:
        assert read.get(name, set()) - {name}, name


def test_every_state_has_a_colour():
    for panel in every_panel():
        overrides = {o["matcher"]["options"] for o in panel["fieldConfig"]["overrides"]}
        by_state = any("{{state}}" in target["legendFormat"] for target in panel["targets"])
        if by_state and overrides & STATES:
            assert overrides >= STATES


def test_expressions_read_existing_series_and_labels():
    for expression in expressions():
        names = series_of(expression.text)
        assert names and names <= exposed_names(), expression.name
        for name, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}", expression.text):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", matchers))
            metric = CATALOGUE.get(re.sub(r"_(bucket|sum|count)$", "", name)) or CATALOGUE.get(name)
            known = ADDED | set(metric.labels) if metric else RECORDED
            assert labels <= known, f"{expression.name}: {name}{{{matchers}}}"


def test_expressions_name_only_known_states_and_phases():
    known = {
        "state": STATES,
        "phase": set(PHASES),
        "status": {"running", "unobserved", *FINAL_STATUSES},
    }
    for expression in expressions():
        # A port has states of its own.
        text = re.sub(r"goodput_infiniband_state\{[^}]*\}", "", expression.text)
        for label, values in known.items():
            for _, named in re.findall(rf'\b{label}\s*(=~|!~|!=|=)\s*"([^"]*)"', text):
                assert set(named.split("|")) <= values, expression.name


def test_series_of_leaves_only_series():
    expr = """
        sum by (run, le) (rate(a_bucket{x="b or c",y=~"d"}[5m:1s])) / on (run) group_left (host) e:f:g_5m
        unless ignoring (z) clamp_min(h offset 5m, 1e3) > bool 0.7 and topk(3, i) != inf
    """
    assert series_of(expr) == {"a_bucket", "e:f:g_5m", "h", "i"}
