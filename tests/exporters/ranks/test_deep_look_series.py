"""Deep looks as series of the agent: shown while their page is there, removed with it, and never trusted."""

import copy
import json
import os

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.node.deep_looks import LOOK, SEEN
from support.node.node_rank import Rank
from support.node.node_tree import MS, samples

from goodput.metrics import Families
from goodput.metrics.openmetrics import OpenMetricsWriter
from goodput.rank_page import deep_look
from goodput_exporters.collector import Settings
from goodput_exporters.collectors.ranks.collector import Ranks


def exposed(ranks, what="goodput_deep_look") -> dict:
    families = Families("node")
    ranks.poll()
    ranks.collect(families)
    return {key: value for key, value in samples(families).items() if key[0].startswith(what)}


def of_look(clock) -> dict:
    return {**LOOK, "seen": {**copy.deepcopy(SEEN), "unix_ns": clock.unix_ns() - 30 * 10**9}}


def test_series_of_a_look(tree, ranks, clock):
    rank = Rank(tree / "pages")
    assert exposed(ranks) == {}
    deep_look.write(str(rank.path), of_look(clock))
    found = exposed(ranks)
    by_kind = {key[1][0]: value for key, value in found.items() if key[0] == "goodput_deep_look_seconds"}
    assert by_kind == {
        "compute": 0.004, "communication": 0.001, "copy": 0, "loader": 0.005, "host": 0, "idle": 0,
        "communication_hidden": 0.002, "copy_hidden": 0, "kernel": 0.007,
    }  # fmt: skip
    assert found["goodput_deep_look_age_seconds", ("0", "r1")] == 30
    assert found["goodput_deep_look_cost_seconds_total", ("0", "r1")] == 0.02
    outcomes = {key[1][0]: value for key, value in found.items() if key[0] == "goodput_deep_looks_total"}
    assert outcomes == {"done": 2, "skipped": 1, "failed": 0}
    deep_look.write(str(rank.path), {**LOOK, "seen": None})
    assert {key[0] for key in exposed(ranks)} == {
        "goodput_deep_looks_total",
        "goodput_deep_look_cost_seconds_total",
    }


def test_copies_to_the_device_beside_what_the_node_reached(tree, clock):
    """By hand: 2 MB in 100 us are 20 GB/s, of the 50 GB/s that the probe of this device reached."""
    rank, probe = Rank(tree / "pages"), tree / "probe.json"
    figures = [
        {"name": "h2d_pinned", "value": rate, "unit": "B/s", "device": device}
        for device, rate in (("H100", 50e9), ("other", 10e9))
    ]
    probe.write_text(json.dumps({"host": "n0", "figures": figures}))
    shown = {}
    for device in ("H100", "unknown"):
        look = of_look(clock)
        look["seen"] |= {"device": device, "h2d_bytes": 2_000_000, "h2d_ns": 100_000}
        deep_look.write(str(rank.path), look)
        settings = Settings(str(tree / "pages"), procfs=str(tree / "proc"), probe=str(probe))
        shown[device] = exposed(Ranks(settings), "goodput_deep_look_h2d")
    assert shown["unknown"] == {("goodput_deep_look_h2d_bytes_per_second", ("0", "r1")): 20e9}
    assert shown["H100"] == {**shown["unknown"], ("goodput_deep_look_h2d_reached_ratio", ("0", "r1")): 0.4}


def test_file_without_a_look_is_counted(tree, ranks):
    """Its page loses nothing by it."""
    rank = Rank(tree / "pages")
    with open(deep_look.path_of(str(rank.path)), "w") as file:
        json.dump({**LOOK, "looks": "many"}, file)
    assert exposed(ranks) == {}
    families = Families("node")
    ranks.collect(families)
    found = samples(families)
    assert found["goodput_node_page_errors_total", ("look",)] == 2
    assert found["goodput_node_pages", ("live",)] == 1
    assert found["goodput_node_pages", ("rejected",)] == 0
    assert found["goodput_rank_alive", ("0", "r1")] == 1


def test_it_is_removed_with_its_page(tree, ranks, clock):
    rank = Rank(tree / "pages")
    deep_look.write(str(rank.path), of_look(clock))
    (tree / "pages" / "other.look.json").write_text("somebody else's")
    ranks.poll()
    for path in (tree / "proc").glob("*/stat"):
        path.unlink()
    ranks.poll()
    clock.seconds = 61.0
    ranks.poll()
    assert len(ranks.sweep(lambda key: True)) == 1
    assert os.listdir(tree / "pages") == ["other.look.json"]


def exemplars(ranks) -> list:
    """(name, bucket, exemplar) of all in the agent's OpenMetrics text, by the official parser."""
    families = Families("node")
    ranks.poll()
    ranks.collect(families)
    text = OpenMetricsWriter().write([families]).decode()
    found = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return [(one.name, one.labels["le"], one.exemplar) for one in found if one.exemplar is not None]


def test_the_traced_step_is_an_exemplar_of_its_rank(tree, ranks, clock):
    rank = Rank(tree / "pages")
    for _ in range(4):
        rank.step({"forward": 10 * MS})
    assert exemplars(ranks) == [], "there is no deep look"
    deep_look.write(str(rank.path), of_look(clock))
    ((name, bucket, one),) = exemplars(ranks)
    assert name == "goodput_step_duration_seconds_bucket" and one.value == 0.01 <= float(bucket)
    looked = os.path.basename(deep_look.path_of(str(rank.path)))
    assert one.labels == {"step": "3", "attempt": "1", "deep_look": looked}
    assert abs(float(one.timestamp) - (clock.unix_ns() / 1e9 - 30)) < 0.001
    deep_look.write(str(rank.path), {**LOOK, "seen": None})
    assert exemplars(ranks) == [], "the looks have failed so far"
