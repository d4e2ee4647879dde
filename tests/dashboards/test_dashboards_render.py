"""The pictures' Python side: variables, steps, queries to Prometheus; and a picture, where npm's packages are installed."""

import json
import re
import shutil
import struct
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from bench.alert_replay import rules as alert_rules
from bench.alert_replay.rules import Rule
from dashboards.render import __main__ as command
from dashboards.render import document, history, queries, variables
from dashboards.render.queries import Range
from dashboards.rows import panels_of
from support.servers import http_server
from support.servers.servers import DASHBOARDS, REPOSITORY

from goodput.simulate.node import key_of
from goodput.simulate.run import SimulatedRun
from goodput.simulate.scenario import AttemptPlan, RunPlan, Workload

RENDER = REPOSITORY / "dashboards" / "render"
HOUR = Range(1_700_000_000_000, 1_700_003_600_000)


def board(*listed: dict, panels=(), **given) -> dict:
    return {"uid": "b", "templating": {"list": list(listed)}, "panels": list(panels), **given}


def query(name: str, text: str, **given) -> dict:
    return {"type": "query", "name": name, "query": {"query": text}, **given}


def resolved(*listed: dict, labels=None, **chosen):
    """Variables by name; `labels` are the values of each label."""
    requests = []

    def label_values(selector, label):
        requests.append((selector, label))
        return (labels or {}).get(label, [])

    chosen = {name: [value] if isinstance(value, str) else value for name, value in chosen.items()}
    found = variables.resolve(board(*listed), label_values, chosen)
    return {one.name: one for one in found}, requests


# ---- Variables


def test_variable_choice_precedence():
    run = query("run", "label_values(goodput_run_info, run)", sort=2)
    found, requests = resolved(run, labels={"run": ["a", "c", "b", "c"]})
    assert (found["run"].values, requests) == (("c",), [("goodput_run_info", "run")]), (
        "sorted, the last first"
    )
    assert resolved(run, labels={"run": ["a"]}, run="x")[0]["run"].values == ("x",)
    assert resolved(run)[0]["run"].values == (), "nothing to choose from"
    assert resolved({"type": "textbox", "name": "rank", "query": "0"})[0]["rank"].values == ("0",)


def test_all_expands_to_the_boards_pattern():
    node = query(
        "instance", 'label_values({__name__=~"a|b",run=~"$run"}, instance)', includeAll=True, multi=True
    )
    run = query("run", "label_values(up, run)")
    found, requests = resolved(run, node, labels={"run": ['r"1'], "instance": ["n10", "n9"]})
    assert requests[1] == ('{__name__=~"a|b",run=~"r\\"1"}', "instance"), "those before it are filled in"
    node_found = found["instance"]
    assert (node_found.all, node_found.values, node_found.text) == (True, ("n9", "n10"), "All")
    assert variables.fill("$instance", [node_found], {}) == "(n9|n10)"
    with_pattern, _ = resolved({**node, "allValue": ".*"}, labels={"instance": ["n1"]})
    assert variables.fill('{i=~"$instance"}', with_pattern.values(), {}) == '{i=~".*"}'
    assert with_pattern["instance"].text == "All"


@pytest.mark.parametrize(
    "text, filled",
    [
        ('up{run="$run"}', 'up{run="a\\\\b \\"c\\""}'),
        ("$runs $other", "$runs $other"),
        ("rate(x[$__rate_interval])", "rate(x[20s])"),
        ('{n=~"$nodes"}', '{n=~"(n\\\\.1|n2)"}'),
        ('{n=~"$node"}', '{n=~"n\\\\.1"}'),
    ],
)
def test_variables_in_text(text, filled):
    known = [
        variables.Variable("run", ('a\\b "c"',)),
        variables.Variable("nodes", ("n.1", "n2"), several=True),
        variables.Variable("node", ("n.1",), several=True),
    ]
    assert variables.fill(text, known, {"__rate_interval": "20s"}) == filled


def test_unsupported_variable_is_named():
    with pytest.raises(ValueError, match=r"no variable 'rum'; it has run"):
        resolved(query("run", "label_values(up, run)"), rum="x")
    with pytest.raises(ValueError, match=r"'run': supported are .* label_values"):
        resolved(query("run", "query_result(up)"))
    with pytest.raises(ValueError, match="not type 'adhoc'"):
        resolved({"type": "adhoc", "name": "x"})


# ---- Steps


@pytest.mark.parametrize(
    "text, expected", [("15s", 15_000), ("1h", 3_600_000), ("1m30s", 90_000), ("20ms", 20)]
)
def test_lengths_of_time(text, expected):
    assert queries.milliseconds(text) == expected


@pytest.mark.parametrize("text", ["", "15", "s", "1h x", "-1h"])
def test_invalid_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        queries.milliseconds(text)


@pytest.mark.parametrize(
    "hours, points, least, expected",
    [(1, 800, 5000, 5000), (1, 800, 15_000, 15_000), (6, 800, 5000, 30_000), (24, 1000, 5000, 60_000)],
)
def test_step_is_round_and_bounded_below(hours, points, least, expected):
    assert queries.step_ms(Range(0, hours * 3_600_000), points, least) == expected


@pytest.mark.parametrize(
    "step, rate", [(5000, "20s"), (15_000, "20s"), (60_000, "65s"), (115_000, "2m"), (3_595_000, "1h")]
)
def test_rate_interval_covers_four_scrapes(step, rate):
    found = queries.builtin_variables(HOUR, step)
    assert (found["__rate_interval"], found["__range"]) == (rate, "3600s")


# ---- Queries


@pytest.fixture
def prometheus():
    """A fake Prometheus that records requests and answers by query or path; (url, requests, answers)."""
    requests, answers = [], {}

    class Handler(http_server.Handler):
        def do_GET(self):
            url = urlsplit(self.path)
            given = {name: values[0] for name, values in parse_qs(url.query).items()}
            requests.append((url.path, given))
            code, body = answers.get(
                given.get("query", url.path), (200, {"resultType": "matrix", "result": []})
            )
            body = {"status": "success", "data": body} if code == 200 else {"status": "error", "error": body}
            self.answer(code, json.dumps(body).encode())

    server = http_server.HttpServer(Handler)
    yield server.url, requests, answers
    server.close()


def panel(*targets: dict, **given) -> dict:
    place = {"x": 0, "y": 0, "w": 12, "h": 8}
    targets = tuple({"refId": "A", "legendFormat": "", **one} for one in targets)
    return {"id": 1, "type": "timeseries", "gridPos": place, "targets": targets, **given}


def test_panel_targets_become_queries(prometheus):
    url, requests, answers = prometheus
    one = {"metric": {"a": "b"}, "value": [1, "2"]}
    answers["now"] = (200, {"resultType": "vector", "result": [one]})
    answers["7"] = (200, {"resultType": "scalar", "result": [1, "7"]})
    answers["broken"] = (400, "1:1: parse error")
    targets = [
        {"refId": "A", "expr": 'x{run="$run"}[$__rate_interval]', "range": True, "legendFormat": "{{a}}"},
        {"refId": "B", "expr": "now", "instant": True, "format": "table"},
        {"refId": "C", "expr": "7", "instant": True},
        {"refId": "E", "expr": "broken"},
    ]
    run = [variables.Variable("run", ("r1",))]
    found = queries.query_panel(panel(*targets, interval="15s"), url, HOUR, run, points_max=800)
    assert requests[0] == (
        "/api/v1/query_range",
        {"query": 'x{run="r1"}[20s]', "start": "1699999995.0", "end": "1700003595.0", "step": "15.0"},
    ), "at whole multiples of the step"
    assert requests[1] == ("/api/v1/query", {"query": "now", "time": "1700003600.0"})
    assert [answer["refId"] for answer in found] == ["A", "B", "C", "E"]
    assert (found[0]["legend"], found[0]["step_ms"], found[0]["error"]) == ("{{a}}", 15_000, "")
    assert (found[1]["format"], found[1]["series"]) == (
        "table",
        [{"metric": {"a": "b"}, "values": [[1, "2"]]}],
    )
    assert found[2]["series"] == [{"metric": {}, "values": [[1, "7"]]}]
    assert (found[3]["error"], found[3]["series"]) == ("1:1: parse error", [])


def test_unreachable_prometheus_is_reported_in_the_answer():
    (found,) = queries.query_panel(panel({"expr": "up"}), "http://127.0.0.1:1", HOUR, [], points_max=800)
    assert "refused" in found["error"] and found["series"] == []


def test_annotations_are_non_zero_intervals(prometheus):
    url, requests, answers = prometheus
    start = HOUR.from_ms // 1000
    values = [[start + 15 * at, str(value)] for at, value in enumerate([0, 1, 1, 0, 1, 0])]
    answers["down == 1"] = (
        200,
        {"resultType": "matrix", "result": [{"metric": {"run": "r1"}, "values": values}]},
    )
    listed = [
        {"name": "Down", "expr": "down == 1", "iconColor": "blue", "enable": True},
        {"name": "Off", "expr": "off", "enable": False},
        {"name": "Grafana's own", "builtIn": 1},
    ]
    found = document.document_of(board(annotations={"list": listed}), url, HOUR)
    spans = [(one["from"] // 1000 - start, one["to"] // 1000 - start) for one in found["marks"]]
    assert spans == [(15, 30), (60, 60)]
    assert found["marks"][0]["colour"] == "blue"
    assert len(requests) == 1, "a disabled annotation is not queried"


def test_annotation_at_its_values_marks_each_series_once(prometheus):
    """As Grafana draws one that uses the value for the time: the events of a story, wherever they were scraped."""
    url, _, answers = prometheus
    start = HOUR.from_ms // 1000
    listed = [{"name": "Story", "expr": "story", "iconColor": "red", "useValueForTime": True}]
    result = [
        {
            "metric": {"title": title},
            "values": [[start + 600 + 15 * at, str(moment * 1000)] for at in range(3)],
        }
        for title, moment in (("second", start + 90.5), ("first", start + 15))
    ]
    answers["story"] = (200, {"resultType": "matrix", "result": result})
    found = document.document_of(board(annotations={"list": listed}), url, HOUR)["marks"]
    assert [(one["from"] - HOUR.from_ms, one["to"] - HOUR.from_ms) for one in found] == [
        (15_000,) * 2,
        (90_500,) * 2,
    ]


def test_document_has_everything_for_the_page(prometheus):
    """page/document.ts declares the same fields as the documents have, on every level."""
    url, _, answers = prometheus
    at = HOUR.from_ms // 1000
    answers["x"] = (200, {"resultType": "matrix", "result": [{"metric": {}, "values": [[at, "1"]]}]})
    marks = {"annotations": {"list": [{"name": "X", "expr": "x", "iconColor": "red"}]}}
    found = document.document_of(
        board({"type": "textbox", "name": "v", "query": "1"}, panels=[panel({"expr": "x"})], **marks),
        url,
        HOUR,
    )
    declared = {
        name: set(re.findall(r"^  (\w+)\??:", body, re.M))
        for name, body in re.findall(
            r"interface (\w+) \{(.*?)\n\}", (RENDER / "page/document.ts").read_text(), re.S
        )
    }
    (answer,) = found["answers"]["1"]
    assert declared == {
        "BoardDocument": set(found),
        "Answer": set(answer),
        "Series": set(answer["series"][0]),
        "Mark": set(found["marks"][0]),
        "Variable": set(found["variables"][0]),
    }


@pytest.mark.parametrize("path", sorted(DASHBOARDS.glob("*.json")), ids=lambda path: path.stem)
def test_every_board_is_queried_without_unfilled_variables(path, prometheus):
    url, requests, answers = prometheus
    for label in ("run", "instance", "gpu", "rank"):
        answers[f"/api/v1/label/{label}/values"] = (200, [f"{label}-1", f"{label}-2"])
    found = document.document_of(json.loads(path.read_text()), url, HOUR)
    assert set(found["answers"]) == {str(one["id"]) for one in panels_of(found["board"])}
    texts = [given["query"] for _, given in requests if "query" in given]
    assert len(texts) > 10
    assert [text for text in texts if re.search(r"\$[{a-z_]", text)] == []


# ---- The command


def test_command_parses_times():
    assert command.range_of("now-1h", "now", 10_000) == Range(6_400_000, 10_000_000)
    assert command.range_of("100", "200.5", 0) == Range(100_000, 200_500)
    with pytest.raises(ValueError, match="is empty"):
        command.range_of("now", "now-5m", 10_000)
    with pytest.raises(ValueError, match="'yesterday' is neither"):
        command.range_of("yesterday", "now", 0)


def test_command_parses_variables():
    assert command.chosen_of(["run=a=b", "gpu=1", "gpu=2"]) == {"run": ["a=b"], "gpu": ["1", "2"]}
    with pytest.raises(ValueError, match="NAME=VALUE, not 'run'"):
        command.chosen_of(["run"])


def test_command_keeps_document_and_fails_on_query_error(tmp_path, prometheus, capsys):
    url, _, answers = prometheus
    answers["up"] = (200, {"resultType": "matrix", "result": []})
    file = tmp_path / "b.json"
    file.write_text(json.dumps(board(panels=[panel({"expr": "up"})])))
    where = ["--prometheus", url, "--out", str(tmp_path)]
    call = [str(file), *where, "--keep", "--no-picture", "--variable", "x=1"]
    assert command.main(call) == 0, "a variable that this board does not have is another's"
    assert json.loads((tmp_path / "b.document.json").read_text())["answers"]["1"][0]["expr"] == "up"
    answers["up"] = (422, "too many samples")
    assert command.main(call) == 1 and "b.json: too many samples" in capsys.readouterr().err
    assert command.main([*call, "--from", "soon"]) == 2 and "'soon'" in capsys.readouterr().err


# ---- The simulated history


def test_history_is_declared_and_consistent():
    """Every series is in the catalogue (KeyError otherwise), and the aggregator finds no contradiction."""
    scraper = history.scraped(360, 1_767_609_000)
    found = {}
    for labels, at, values in scraper.series():
        key = (labels["__name__"], *sorted(item for item in labels.items() if item[0] != "__name__"))
        assert key not in found and (np.diff(at) > 0).all()
        found[key] = at, values
    assert len(scraper.times) == 36 and max(at[-1] for at, _ in found.values()) == 1_767_609_000
    assert sum(len(values) for _, values in found.values()) > 100_000

    def one(name: str, **labels: str):
        (values,) = [
            values
            for key, (_, values) in found.items()
            if key[0] == name and labels.items() <= dict(key[1:]).items()
        ]
        return values

    # The run is killed once, and resumes.
    alive = one("goodput_ranks", kind="alive", run="llama-70b")
    assert set(alive) == {0.0, 24.0} and alive[-1] == 24.0
    assert one("goodput_steps", kind="kept", run="llama-70b")[-1] > 24, "some steps of each rank"
    clamped = [values for key, (_, values) in found.items() if key[0] == "goodput_aggregator_clamped_total"]
    assert clamped and not any(values.any() for values in clamped)


@pytest.mark.parametrize(
    "name, labels", [("goodput_no_such_series", {}), ("goodput_node_backlog_rows", {"rank": "0"})]
)
def test_undeclared_series_is_refused(name, labels):
    with pytest.raises(KeyError):
        key_of(name, labels)


def test_killed_run_resumes_from_its_checkpoint():
    places = [("n-01", gpu) for gpu in range(8)]
    attempts = [AttemptPlan(0, 300, places), AttemptPlan(395, 1e6, places)]
    run = SimulatedRun(RunPlan("r", attempts, Workload(step=2, checkpoint_every=100, checkpoint=10)))
    run.advance(299)
    committed = [one.step for one in run.attempt.events if one.kind == "checkpoint_committed"]
    step = run.attempt.step
    run.advance(320)
    assert committed and not run.attempt.alive and run.attempt.step >= step
    run.advance(600)
    assert run.attempt.alive and run.attempt.number == 2
    (resumed,) = [one for one in run.attempt.events if one.kind == "resumed"]
    assert resumed.step == committed[-1] < step
    assert run.attempt.rows[0].fields[1] == resumed.step + 1


def test_recording_rules_follow_what_they_read():
    rules = alert_rules.load()
    found = alert_rules.recording(rules)
    assert sorted(rule.name for rule in found) == sorted(rule.name for rule in rules if not rule.alert)
    names = {rule.name for rule in found}
    for at, rule in enumerate(found):
        later = {other.name for other in found[at + 1 :]}
        assert not (rule.needs & names & later) - {rule.name}, rule.name
    circle = [
        Rule("a:b", "c:d", "g", False, {}, needs=frozenset({"c:d"})),
        Rule("c:d", "a:b", "g", False, {}, needs=frozenset({"a:b"})),
    ]
    with pytest.raises(ValueError, match="need each other"):
        alert_rules.recording(circle)


# ---- The picture


def test_lock_file_has_exact_versions_and_no_registry():
    package = json.loads((RENDER / "package.json").read_text())
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in package["dependencies"].values())
    lock = (RENDER / "package-lock.json").read_text()
    assert "resolved" not in lock and "://" not in re.sub(r'"(url|funding)": "[^"]*"', "", lock)
    assert json.loads(lock)["packages"][""]["dependencies"] == package["dependencies"]


def require_page() -> None:
    """Skip without npm's packages, which `make pictures` installs: half a gigabyte, too much for every test run."""
    if not (RENDER / "node_modules").exists() or not (RENDER / "dist" / "main.js").exists():
        pytest.skip("the page is not built (`make pictures` installs and builds it)")
    for programs in (("node",), command.BROWSERS):
        if not any(map(shutil.which, programs)):
            pytest.skip(f"not installed: {' or '.join(programs)}")


def take_picture(folder: Path, prometheus, jobs: list[str]) -> int:
    """The command's exit status for b.png in the folder: lines of these jobs, a number, and a collapsed row."""
    url, _, answers = prometheus
    values = [[HOUR.from_ms // 1000 + 15 * at, str(at % 7)] for at in range(240)]
    result = [{"metric": {"job": job}, "values": values} for job in jobs]
    answers["up"] = (200, {"resultType": "matrix", "result": result})
    of_fleet = json.loads((DASHBOARDS / "goodput-fleet.json").read_text())["panels"]
    one_of = {one["type"]: one for one in of_fleet if one["title"] != "GPU-hours by state"}
    common = {"targets": panel({"expr": "up", "legendFormat": "{{job}}"})["targets"]}
    panels = [
        {**one_of[kind], **common, "id": at, "gridPos": {"x": 12 * at, "y": 0, "w": 12, "h": 8}}
        for at, kind in enumerate(("timeseries", "stat"))
    ]
    inside = {**panels[0], "id": 2, "gridPos": {"x": 0, "y": 9, "w": 24, "h": 8}}
    place = {"x": 0, "y": 8, "w": 24, "h": 1}
    row = {"type": "row", "id": 3, "title": "Row", "collapsed": True, "panels": [inside], "gridPos": place}
    file = folder / "b.json"
    file.write_text(json.dumps(board(panels=[*panels, row], title="Board")))
    times = ["--from", str(HOUR.from_ms // 1000), "--to", str(HOUR.to_ms // 1000)]
    return command.main([str(file), "--prometheus", url, "--out", str(folder), *times, "--width", "800"])


def test_a_board_becomes_a_picture(tmp_path, prometheus):
    """A collapsed row takes one line of it."""
    require_page()
    assert take_picture(tmp_path, prometheus, ["a"]) == 0
    picture = (tmp_path / "b.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">I", picture[16:20])[0] == 800
    assert 8 * 38 < struct.unpack(">I", picture[20:24])[0] < 13 * 38
    assert len(set(picture)) > 200 and len(picture) > 8000, "not one colour"


def test_a_cut_legend_fails_its_picture(tmp_path, prometheus, capfd):
    require_page()
    assert take_picture(tmp_path, prometheus, [f"a job with a long name {at}" for at in range(12)]) == 1
    assert "page: cut: " in capfd.readouterr().err
