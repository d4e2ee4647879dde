"""What single expressions of the boards give for series with hand-worked values, by promtool."""

import json
import re
import subprocess

import pytest
import yaml
from dashboards import generate
from dashboards.rows import panels_of
from support.servers.servers import REPOSITORY, require

BOARDS = {uid.removesuffix(".json"): json.loads(text) for uid, text in generate.boards().items()}


def expression(board: str, title: str, legend: str, **variables: str) -> str:
    """A panel's expression with Grafana's variables filled in; all clusters, and windows of ten minutes."""
    (panel,) = [one for one in panels_of(BOARDS[board]) if one["title"] == title]
    (expr,) = [one["expr"] for one in panel["targets"] if one["legendFormat"] == legend]
    given = {"cluster": ".*", "__range": "10m", "__interval": "1m", "__rate_interval": "2m"} | variables
    return re.sub(r"\$(\w+)", lambda name: given[name[1]] if name[1] in given else name[0], expr)


def check(folder, series: dict[str, str], expr: str, samples: dict[str, float]) -> None:
    """promtool's evaluation of the expression after ten minutes, series and samples by their labels."""
    require("promtool")
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": "10m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
            }
        ],
    }
    file = folder / "case.yml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [case]}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_culprit_of_a_run_is_one(tmp_path):
    """Where it hangs, that rank, whatever else is slow; else the slowest rank, else the stage."""
    wasteful = {f'run:waste_gpu_seconds:change_1m{{run="{run}"}}': "60x10" for run in "abcd"}
    culprits = {
        'goodput_hang_culprit_seconds{run="a",rank="5",host="n1",phase="loader"}': "90x10",
        'goodput_straggler_culprit_slowness_ratio{run="a",rank="7",host="n2",phase="forward"}': "1.5x10",
        'goodput_straggler_culprit_slowness_ratio{run="b",rank="1",host="n3",phase="forward"}': "1.2x10",
        'goodput_straggler_culprit_slowness_ratio{run="b",rank="2",host="n4",phase="forward"}': "1.4x10",
        'goodput_straggler_stage_slowness_ratio{run="c",stage="3",phase="forward"}': "1.3x10",
        'goodput_straggler_culprit_slowness_ratio{run="e",rank="0",host="n9",phase="forward"}': "2x10",
    }
    expr = expression("goodput-fleet", "Runs ranked by waste", "slowest")
    samples = {
        '{culprit="rank 5",host="n1",rank="5",run="a"}': 90,
        '{culprit="rank 2",host="n4",rank="2",run="b"}': 1.4,
        '{culprit="stage 3",run="c",stage="3"}': 1.3,
    }
    check(tmp_path, wasteful | culprits, expr, samples)


@pytest.mark.parametrize(
    "run, parts",
    [
        ("steady", {"late ranks": 2, "transfer": 6}),
        ("moved", {"late ranks": 8, "not known": 0}),
        ("still", {"transfer": 0}),
    ],
)
def test_gpus_that_wait_add_up_when_time_moves_between_parts(tmp_path, run, parts):
    """Eight GPUs wait; where time becomes known to be for a late rank, another part falls by as much."""
    name = "goodput_communication_part_gpu_seconds"
    series = {
        f'{name}{{run="steady",group="g",operation="o",part="skew"}}': "0+120x10",
        f'{name}{{run="steady",group="g",operation="o",part="transfer"}}': "0+360x10",
        f'{name}{{run="moved",group="g",operation="o",part="skew"}}': "0+3000x10",
        f'{name}{{run="moved",group="g",operation="o",part="unknown"}}': "90000-2520x10",
        f'{name}{{run="still",group="g",operation="o",part="transfer"}}': "7x10",
    }
    expr = expression("goodput-communication", "Waiting for late ranks, and transfer", "{{part}}", run=run)
    samples = {f'{{part="{part}"}}': gpus for part, gpus in parts.items()}
    check(tmp_path, series, expr, samples)


@pytest.mark.parametrize("seconds, hangs", [(0, 0), (90, 1)])
def test_a_hang_counts_without_a_known_collective(tmp_path, seconds, hangs):
    """By two aggregators, which both have the run."""
    series = {f'goodput_hang_seconds{{run="r",instance="a{at}"}}': f"{seconds}x10" for at in range(2)}
    expr = expression("goodput-communication", "Delays and hangs that were found", "hangs", run="r")
    check(tmp_path, series, expr, {"{}": hangs})


@pytest.mark.parametrize("operation, named", [("", "not recorded"), ("all_reduce", "all_reduce")])
def test_time_without_a_record_has_a_name(tmp_path, operation, named):
    series = {f'goodput_communication_gpu_seconds{{run="r",group="",operation="{operation}"}}': "7200x10"}
    expr = expression("goodput-communication", "What the waiting was for", "GPU hours", run="r")
    check(tmp_path, series, expr, {f'{{operation="{named}"}}': 2})


def test_phases_of_the_step_thread_add_up_to_all(tmp_path):
    """Though a phase of four minutes is counted when it ends, as more than all the time of the window."""
    series = {
        'goodput_phase_seconds_total{run="r",rank="0",clock="host",phase="checkpoint"}': "0x9 240",
        'goodput_phase_seconds_total{run="r",rank="0",clock="host",phase="forward"}': "0+40x10",
    }
    expr = expression("goodput-rank", "Phases on the host's clock", "{{phase}}", run="r", rank="0")
    check(tmp_path, series, expr, {'{phase="checkpoint"}': 0.75, '{phase="forward"}': 0.25})


def test_runbook_finds_the_runs_that_hang_without_an_aggregator(tmp_path):
    """Not those that work, and not those that are over, whose agents still have their pages for a minute."""
    text = (REPOSITORY / "deploy" / "runbooks" / "GoodputAggregatorDown.md").read_text()
    (query,) = re.findall(r"(?m)^    (run:steps:rate_1m.*)$", text)
    series = {'run:steps:rate_1m{run="works"}': "2x10", 'goodput_rank_alive{run="works",rank="0"}': "1x10"}
    series |= {f'run:steps:rate_1m{{run="{run}"}}': "0x10" for run in ("hangs", "over", "removed")}
    series |= {f'goodput_rank_alive{{run="hangs",rank="{rank}"}}': f"{1 - rank}x10" for rank in range(2)}
    series['goodput_rank_alive{run="over",rank="0"}'] = "0x10"
    check(tmp_path, series, query, {'run:steps:rate_1m{run="hangs"}': 0})
