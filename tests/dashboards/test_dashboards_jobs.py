"""Alerts on nodes while jobs change on them: each fires as without jobs, once, and with the same labels all the time.

The promtool cases of deploy/prometheus/tests in which such an alert fires, with another job on each node and GPU every
ten minutes. What a case expects stays: the labels, when an alert does not fire yet, and when it has resolved.
"""

import itertools
import json
import re
import subprocess
from collections import defaultdict

import pytest
import yaml
from support.dashboards.rules_pruned import alert_key, each_pruned, keys_in_case, read, rule_files
from support.servers.servers import RULES, require

JOB_SECONDS, BETWEEN_JOBS_SECONDS = 600, 30
# When the first job ends: a change of jobs falls into every two and a half minutes of some replay of `make fuzz`, and
# into every five minutes of one of the suite.
FIRST_JOB_SECONDS = (150, 450)
MORE_SECONDS = [pytest.param(seconds, marks=pytest.mark.more_seeds) for seconds in (300, 600)]
OF_NODES = {
    alert_key(rule["labels"], rule["alert"])
    for name in rule_files()
    for group in yaml.safe_load((RULES / name).read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule and ("hardware" in name or rule["labels"]["level"] == "node")
}
PATHS = [path for path in sorted((RULES / "tests").glob("*.yml")) if re.match("hardware|stack", path.stem)]
OWNERS = ("goodput_rank_alive", "goodput_gpu_rank_info")


def label(series: str, name: str) -> str | None:
    found = re.search(rf'\b{name}="([^"]*)"', series)
    return found and found[1]


def seconds(text: str) -> int:
    return sum(int(n) * {"h": 3600, "m": 60, "s": 1}[unit] for n, unit in re.findall(r"(\d+)([hms])", text))


def jobs_on(places: dict[str, set[str]], first_seconds: int, step: int, end_seconds: int) -> list[dict]:
    """Series of jobs on nodes and on their GPUs, one after the other, each with a moment of no job behind it."""
    found = []
    starts = [0, *range(first_seconds, end_seconds, JOB_SECONDS)]
    for job, (start, end) in enumerate(itertools.pairwise([*starts, starts[-1] + JOB_SECONDS])):
        before, length = start // step, (end - start - BETWEEN_JOBS_SECONDS) // step
        if length < 1:
            continue
        values = f"{f'_x{before} ' if before else ''}1x{length - 1} stale"
        for rank, (place, gpus) in enumerate(sorted(places.items())):
            owner = f'{place},run="job-{job}",rank="{rank}"'
            found.append({"series": f"goodput_rank_alive{{{owner}}}", "values": values})
            found += [
                {"series": f'goodput_gpu_rank_info{{{owner},gpu="{gpu}"}}', "values": values} for gpu in gpus
            ]
    return found


def with_jobs(test: dict, first_seconds: int) -> dict | None:
    """A case with changing jobs where it has ranks, or on all nodes; None where no alert on a node fires in it."""
    cases = [
        one
        for one in test.get("promql_expr_test", [])
        if (keys := keys_in_case(one))
        and keys <= OF_NODES
        and one["expr"].startswith("count without (alertstate")
    ]
    by_expr = defaultdict(list)
    for one in cases:
        by_expr[one["expr"]].append((seconds(one["eval_time"]), one["exp_samples"] or []))
    by_expr = {
        expr: sorted(some, key=lambda one: one[0])
        for expr, some in by_expr.items()
        if any(one[1] for one in some)
    }
    if not by_expr:
        return None
    places = defaultdict(set)
    # A rank that ends in a case is what the case is about.
    owned = [one for one in test["input_series"] if one["series"].startswith(OWNERS)]
    replaced = [one for one in owned if re.fullmatch(r"1x\d+", str(one["values"]))]
    nodes = [one for one in test["input_series"] if one["series"].startswith("goodput_node_info")]
    for one in replaced if owned else nodes:
        if instance := label(one["series"], "instance"):
            switch = label(one["series"], "switch")
            places[f'instance="{instance}"' + (f',switch="{switch}"' if switch else "")]
    for place, gpus in places.items():
        gpus |= {
            gpu
            for one in test["input_series"]
            if place in one["series"] and (gpu := label(one["series"], "gpu")) is not None
        }
    step = seconds(test["interval"])
    last = max(at for some in by_expr.values() for at, _ in some)
    series = [one for one in test["input_series"] if one not in replaced]
    expected = []
    for expr, some in by_expr.items():
        expected += [{"expr": expr, "eval_time": f"{at}s", "exp_samples": samples} for at, samples in some]
        # It does not stop in between.
        for (low, before), (high, after) in itertools.pairwise(some):
            if before and before == after:
                expected += [
                    {"expr": expr, "eval_time": f"{at}s", "exp_samples": before}
                    for at in range(low, high, 60)
                ]
        # Nothing ever fires with other labels.
        distinct = {one["labels"] for _, samples in some for one in samples}
        selector = expr[expr.index("ALERTS{") : expr.index("}") + 1]
        expected.append(
            {
                "expr": f"count(count_over_time({selector}[1d]))",
                "eval_time": f"{last}s",
                "exp_samples": [{"labels": "{}", "value": len(distinct)}],
            }
        )
    return {
        "interval": test["interval"],
        "name": test.get("name", ""),
        "input_series": series + jobs_on(places, first_seconds, step, last + 60),
        "promql_expr_test": expected,
    }


def replays(path, first_seconds: int) -> list[dict]:
    return [found for test in read(path)["tests"] if (found := with_jobs(test, first_seconds))]


@pytest.mark.parametrize("first_seconds", [*FIRST_JOB_SECONDS, *MORE_SECONDS])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_changing_jobs_do_not_change_alerts_of_nodes(path, first_seconds, tmp_path):
    require("promtool")
    document = {**read(path), "tests": replays(path, first_seconds)}
    assert document["tests"]
    copy = tmp_path / path.name
    copy.write_text(json.dumps(document))
    command = ["promtool", "test", "rules", *map(str, each_pruned(copy, tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_of_a_node_is_replayed_with_jobs():
    replayed = set()
    for path in PATHS:
        for test in replays(path, FIRST_JOB_SECONDS[0]):
            replayed |= {key for one in test["promql_expr_test"] for key in keys_in_case(one)}
    assert replayed >= OF_NODES
