"""What a person needs to read the boards: colours that agree, names that fit, axes with round numbers, no empty panel."""

import json
import re

import pytest
from dashboards import generate
from dashboards import panels as kinds
from dashboards.render import document, history, queries
from dashboards.render.pictures import VIEWS
from dashboards.render.queries import Range
from dashboards.rows import collapsed_rows, panels_of
from support.servers.servers import require

BOARDS = {uid.removesuffix(".json"): json.loads(text) for uid, text in generate.boards().items()}
PANELS = [(uid, panel) for uid, board in BOARDS.items() for panel in panels_of(board)]
LINES = [(uid, panel) for uid, panel in PANELS if panel["type"] == "timeseries"]
# Series whose values are judged alike wherever they are shown.
QUANTITIES = {
    "useful share": r"goodput_(goodput|availability|step_efficiency)_ratio|cluster:goodput:ratio_5m|run:goodput:ratio_5m",
    "FLOPs": r"goodput_(mfu|hfu|compute_efficiency)_ratio|cluster:mfu:ratio_5m",
    "coverage": r"goodput_coverage_ratio",
    "temperature": r"goodput_gpu_temperature_celsius",
}
# What lasts minutes: on an axis of seconds the lines stand at 1.67 and 3.33 minutes.
MINUTES = re.compile(
    r"goodput_(progress_age|stall_threshold|hang|checkpoint_\w*age|checkpoint_\w*interval)_seconds"
)
# Once in minutes; a rate over seconds is a row of spikes.
RARE = re.compile(r"goodput_(deep_look_cost_seconds|deep_looks|compilations|skipped_steps)_total")
REDS = {"red", *kinds.ALARMING}
NODES = re.compile(r'instance=~"\(?([^")]+)\)?"')
# Red without being bad: a bound that is not to be reached.
BOUNDS = r"limit|budget|threshold|stall|hangs|killed"
# What these are counted in has to be written beside the axis.
WITHOUT_UNIT = {"short", "none", "sci"}


def settings_of(panel: dict, name: str) -> dict:
    """The overrides of a series or column."""
    found = {}
    for override in panel["fieldConfig"]["overrides"]:
        matcher, pattern = override["matcher"]["id"], override["matcher"]["options"]
        if (matcher == "byName" and pattern == name) or (
            matcher == "byRegexp" and re.match(pattern.strip("/"), name)
        ):
            found |= {one["id"]: one["value"] for one in override["properties"]}
    return found


def steps_of(panel: dict, name: str) -> list[tuple]:
    steps = settings_of(panel, name).get("thresholds") or panel["fieldConfig"]["defaults"]["thresholds"]
    return [(step["value"], step["color"]) for step in steps["steps"]]


@pytest.mark.parametrize("pattern", QUANTITIES.values(), ids=QUANTITIES)
def test_one_quantity_has_one_colour_scale(pattern):
    """Where it is coloured at all: 94 % is not yellow beside a green 87 %."""
    scales = {}
    for uid, panel in PANELS:
        for target in panel["targets"]:
            name = target["legendFormat"]
            if re.search(pattern, target["expr"]) and panel["type"] in ("stat", "table"):
                steps = steps_of(panel, name)
                if len(steps) > 1:
                    scales.setdefault(tuple(steps), []).append((uid, panel["title"], name))
    assert len(scales) == 1, scales


def test_legends_name_gpus_by_node_and_index():
    for uid, panel in PANELS:
        for target in panel["targets"]:
            legend = target["legendFormat"]
            is_node = re.search(r"\{\{(gpu|gpu_uuid|instance)\}\}", legend)
            assert not is_node or "goodput_aggregator_" in target["expr"], (uid, panel["title"], legend)


def test_minutes_stand_on_an_axis_of_minutes():
    for uid, panel in LINES:
        for target in panel["targets"]:
            if MINUTES.search(target["expr"]):
                assert panel["fieldConfig"]["defaults"]["unit"] == "suffix:min", (uid, panel["title"])
                assert "/ 60" in target["expr"]


def test_rare_events_are_counted_over_minutes():
    for uid, panel in LINES:
        for target in panel["targets"]:
            for series in RARE.finditer(target["expr"]):
                (window,) = re.findall(r"\[([^\]]+)\]", target["expr"][series.start() :])[:1]
                assert window == "15m", (uid, panel["title"], target["legendFormat"])


def test_only_what_is_bad_is_red():
    """Every line with a fixed name has a colour of its own, red where its name says that something is wrong."""
    for uid, panel in LINES:
        for target in panel["targets"]:
            name = target["legendFormat"]
            if "{{" in name:
                continue
            colour = settings_of(panel, name).get("color", {}).get("fixedColor")
            assert colour, (uid, panel["title"], name)
            if colour in REDS:
                assert kinds.BAD.search(name) or re.search(BOUNDS, name), (uid, panel["title"], name)


def test_processors_that_idle_are_not_drawn():
    modes = [
        target["expr"]
        for _, panel in LINES
        for target in panel["targets"]
        if "goodput_host_cpu_seconds_total" in target["expr"]
    ]
    assert modes and all('mode!="idle"' in expr for expr in modes)


def axes_of(panel: dict) -> list[tuple[str, str, str]]:
    """(placement, unit, text beside it) of the axes of lines: the panel's own, and those of single series."""
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults.get("custom", {})
    found = [("left", defaults["unit"], custom.get("axisLabel", ""))]
    for override in panel["fieldConfig"]["overrides"]:
        settings = {one["id"]: one["value"] for one in override["properties"]}
        if "custom.axisPlacement" in settings or "unit" in settings:
            placement = settings.get("custom.axisPlacement", "left")
            label = settings.get("custom.axisLabel", custom.get("axisLabel", ""))
            found.append((placement, settings.get("unit", defaults["unit"]), label))
    return found


@pytest.mark.parametrize("uid, panel", LINES, ids=lambda one: one if isinstance(one, str) else one["title"])
def test_every_axis_has_a_unit(uid, panel):
    """Or says what is counted; and no line is drawn on a scale that is not shown."""
    for placement, unit, label in axes_of(panel):
        assert placement != "hidden"
        assert label or unit not in WITHOUT_UNIT, (placement, unit)


@pytest.mark.parametrize("uid, panel", LINES, ids=lambda one: one if isinstance(one, str) else one["title"])
def test_margin_and_limit_have_their_own_axes(uid, panel):
    """Ten degrees left and a limit of ninety are no two values of one quantity."""
    own = {True: set(), False: set()}
    for target in panel["targets"]:
        name = target["legendFormat"]
        is_margin = bool(re.search(r"_margin_celsius|_limit_celsius.* - ", target["expr"]))
        if is_margin or re.search(r"_(temperature|limit)_celsius", target["expr"]):
            own[is_margin].add(settings_of(panel, name).get("custom.axisPlacement", "left"))
    assert not own[True] & own[False], own


# The most rows of tables whose boards have room for all of them.
ROWS = {("goodput-run", "Leading causes, and what to do"): 5, ("goodput-rank", "Identity"): 2}


@pytest.mark.parametrize("uid, panel", [(uid, p) for uid, p in PANELS if p["type"] == "table"])
def test_no_table_is_cut(uid, panel):
    """It has pages, in the options of Grafana before 12.2 and since, or its board has room for every row."""
    options = panel["options"]
    assert options["enablePagination"] == options["footer"].get("enablePagination", False)
    if rows := ROWS.get((uid, panel["title"])):
        assert not options["enablePagination"], "pages take the room of a row"
        needs = CELL_PIXELS["sm"] + rows * CELL_PIXELS[options["cellHeight"]]
        assert needs <= room_pixels(panel, TABLE_FRAME_PIXELS)
    else:
        assert options["enablePagination"]


def test_leading_causes_are_as_many_as_have_room():
    (panel,) = [one for _, one in PANELS if one["title"].startswith("Leading causes")]
    assert all(" <= 5" in target["expr"] for target in panel["targets"])


def test_stacked_shares_add_up_to_all():
    """What is stacked in percent fills 100 %, by a sum in the query too; other stacks have the unit of what they add."""
    for uid, panel in LINES:
        stacking = panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode", "none")
        if stacking == "none":
            continue
        is_share = panel["fieldConfig"]["defaults"]["unit"] == "percentunit"
        assert stacking == ("percent" if is_share else "normal"), (uid, panel["title"])
        for target in panel["targets"] if is_share else ():
            assert re.search(r"/ on \(\) group_left \(\) \(?sum\(", target["expr"]), (uid, panel["title"])


def test_text_beside_an_axis_fits():
    """Along the height that a legend of three rows leaves."""
    for uid, panel in LINES:
        for _, _, label in axes_of(panel):
            room = 0.65 * room_pixels(panel) - 30
            assert CHARACTER_PIXELS * len(label) <= room, (uid, panel["title"], label)


def test_heat_maps_have_a_fixed_scale():
    """A single value far off would else leave one colour to all others."""
    for uid, panel in PANELS:
        if panel["type"] == "heatmap":
            colour = panel["options"]["color"]
            assert colour["min"] < 1 < colour["max"], (uid, panel["title"])


@pytest.mark.parametrize("uid, panel", [(uid, p) for uid, p in PANELS if p["type"] == "bargauge"])
def test_one_error_is_not_a_full_bar(uid, panel):
    """Bars of counts have a maximum: by default the largest bar is full."""
    if panel["fieldConfig"]["defaults"]["unit"] == "short":
        assert panel["fieldConfig"]["defaults"]["max"] >= 10, (uid, panel["title"])


# ---- What the pictures' cluster shows ------------------------------------------------------------------------

# As measured in pictures: `make pictures` fails where something does not fit.
CHARACTER_PIXELS, MARK_PIXELS, ROW_PIXELS, GRID_PIXELS = 6.6, 34, 25.5, 38
# Around a panel: the gap, its title and its padding, which tables do not have.
FRAME_PIXELS, TABLE_FRAME_PIXELS = 58, 41
# Between the rows of the left axis and those of the right one, where they do not fit beside each other.
BETWEEN_AXES_PIXELS, BAR_PIXELS, LEGEND_TABLE_ROW_PIXELS = 15, 22, 24
CELL_PIXELS = {"sm": 36, "lg": 48}


def room_pixels(panel: dict, frame: int = FRAME_PIXELS) -> int:
    """The height inside a panel."""
    return GRID_PIXELS * panel["gridPos"]["h"] - frame


def legend_pixels(panel: dict, names: list[str]) -> float:
    """The height of a legend below the panel; the names of the right axis stand apart."""
    width = 1600 * panel["gridPos"]["w"] / 24 - 32
    groups: dict[bool, list[float]] = {}
    for name in names:
        is_right = settings_of(panel, name).get("custom.axisPlacement") == "right"
        groups.setdefault(is_right, []).append(CHARACTER_PIXELS * len(name) + MARK_PIXELS)
    if sum(map(sum, groups.values())) <= width:
        return ROW_PIXELS
    rows = 0
    for group in groups.values():
        used = width
        for pixels in group:
            rows, used = (rows + 1, pixels) if used + pixels > width else (rows, used + pixels)
    return rows * ROW_PIXELS + BETWEEN_AXES_PIXELS * (len(groups) - 1)


def legends(answers: list[dict]) -> list[str]:
    return [
        re.sub(r"\{\{(\w+)\}\}", lambda label, one=one: one["metric"].get(label[1], ""), answer["legend"])
        for answer in answers
        for one in answer["series"]
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A Prometheus with a quarter of an hour of the pictures' cluster, all its faults in it; and the last ten minutes."""
    require("prometheus")
    end, folder = 1_767_609_000, tmp_path_factory.mktemp("history")
    with history.history(folder, seconds=900, end_seconds=end) as url:
        yield url, Range((end - 600) * 1000, end * 1000)
    assert list(folder.glob("data*")) == [], "it leaves no data behind"


@pytest.fixture(scope="module")
def planted(server):
    """The answers to every panel of each board."""
    (url, range_), found = server, {}
    (up,) = queries.instant_series(url, "count(up == 1)", range_)
    assert up["values"][0][1] == "9", "eight agents and an aggregator"
    for board, (_, chosen) in [*VIEWS.items(), ("host", (0, {"instance": ["gpu-07:9470"]}))]:
        answers = document.document_of(BOARDS[f"goodput-{board}"], url, range_, chosen)["answers"]
        for panel in panels_of(BOARDS[f"goodput-{board}"]):
            found.setdefault((board, panel["title"]), []).append(answers[str(panel["id"])])
    return found


@pytest.mark.parametrize("board", ["node", "gpu", "host"])
def test_a_host_chooses_its_agent(server, board):
    """The web page knows the host of a rank, and links to its boards by var-run and var-node."""
    chosen = {"run": ["llama-70b"], "node": ["gpu-02"]}
    found = document.document_of(BOARDS[f"goodput-{board}"], *server, chosen)
    assert {one["name"]: one["text"] for one in found["variables"]}["instance"] == "All"
    nodes = {
        node for one in found["answers"].values() for answer in one for node in NODES.findall(answer["expr"])
    }
    assert nodes == {"gpu-02:9470"}


def test_fleet_names_the_first_cause_of_each_run(planted):
    """Which is the first on the run's own board."""
    (columns,) = planted["fleet", "Runs ranked by waste"]
    labels = {answer["legend"]: [one["metric"] for one in answer["series"]] for answer in columns}
    causes = {one["run"]: one["cause"] for one in labels["faster by"]}
    assert set(causes) == {one["run"] for one in labels["wasted"]} and len(causes) > 3
    (of_run,) = planted["run", "Leading causes, and what to do"]
    (order,) = [answer["series"] for answer in of_run if answer["legend"] == "order"]
    first = min(order, key=lambda one: float(one["values"][0][1]))
    assert causes["llama-70b"] == first["metric"]["state"]


def shown(planted: dict):
    """(board, panel, answers), once for each view."""
    for uid, panel in PANELS:
        for answers in planted[uid.removeprefix("goodput-"), panel["title"]]:
            yield uid, panel, answers


def test_no_query_fails(planted):
    for uid, panel, answers in shown(planted):
        assert not [one["error"] for one in answers if one["error"]], (uid, panel["title"])


def test_only_collapsed_rows_have_empty_panels(planted):
    """What this cluster has no device, role, pipeline or fault for takes no room on a board."""
    empty = {
        (board, title)
        for (board, title), views in planted.items()
        if not any(one["series"] for answers in views for one in answers)
    }
    collapsed = {
        (uid.removeprefix("goodput-"), panel["title"])
        for uid, board in BOARDS.items()
        for row in collapsed_rows(board)
        for panel in row["panels"]
    }
    assert ("communication", "Rank with a slow link") in empty
    assert empty <= collapsed


def test_no_one_reads_a_whole_uuid(planted):
    """GPUs are named by node and index; tables have slot and the beginning of the uuid."""
    for uid, panel, answers in shown(planted):
        texts = legends(answers)
        if panel["type"] == "table":
            hidden = next(
                t["options"]["excludeByName"] for t in panel["transformations"] if t["id"] == "organize"
            )
            texts = [
                value
                for answer in answers
                for one in answer["series"]
                for label, value in one["metric"].items()
                if label not in hidden and not settings_of(panel, label).get("custom.hidden")
            ]
        assert not [text for text in texts if re.search(r"[0-9a-f]{8}-[0-9a-f]{4}", text)], (
            uid,
            panel["title"],
        )


def test_legends_fit_below_their_panels(planted):
    """Grafana gives a legend a third of a panel, and cuts the rest."""
    cut = {}
    for uid, panel, answers in shown(planted):
        if panel["type"] == "timeseries" and panel["options"]["legend"]["placement"] == "bottom":
            needs, room = legend_pixels(panel, legends(answers)), 0.35 * room_pixels(panel)
            if needs > room:
                cut[uid, panel["title"]] = needs, room
    assert not cut


def test_legends_beside_panels_and_bars_fit(planted):
    cut = {}
    for uid, panel, answers in shown(planted):
        names, room = legends(answers), room_pixels(panel)
        if panel["type"] == "timeseries" and panel["options"]["legend"]["placement"] == "right":
            needs = LEGEND_TABLE_ROW_PIXELS * (len(names) + 1)
        elif panel["type"] == "bargauge":
            needs = BAR_PIXELS * len(names) - 8
        else:
            continue
        if needs > room:
            cut[uid, panel["title"]] = needs, room
    assert not cut


# In the dark theme, which Grafana has by default: its colours by name, and its palette for lines without a fixed colour.
NAMED = {"green": "#73bf69", "semi-dark-yellow": "#f2cc0c", "red": "#f2495c", "purple": "#b877d9"}
PALETTE = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#37872d", "#e0b400", "#1f60c4"]
PALETTE += ["#fa6400", "#c4162a", "#8f3bb8", "#c8f2c2", "#fff899", "#c0d8ff", "#ffcb7d", "#ffa6b0", "#deb6f2"]


def test_lines_of_a_panel_differ_in_colour(planted):
    """A line with a colour of its own has none that Grafana gives to another line of the panel."""
    alike = set()
    for uid, panel, answers in shown(planted):
        if panel["type"] != "timeseries":
            continue
        of: dict[str, set[str]] = {}
        for at, name in enumerate(legends(answers)):
            fixed = settings_of(panel, name).get("color", {}).get("fixedColor")
            colour = NAMED.get(fixed, fixed) if fixed else PALETTE[at % len(PALETTE)]
            of.setdefault(colour, set()).add(name)
        alike |= {(uid, panel["title"], *sorted(names)) for names in of.values() if len(names) > 1}
    assert not alike
