"""Faults in collectives of real processes over gloo: the verdict names rank, group, call and reason.

The Flight Recorder of the ranks that can still answer is the oracle. `make collective-faults` runs 20 seeds of each, from FIRST on.
"""

import json
import os
import subprocess
import sys

import pytest
from support.frameworks.script_process import SCRIPTS
from support.frameworks.two_ranks import environment
from support.installed import need

from goodput.trace.hangs.flight import analyze_flight

need("torch")
FIRST = int(os.environ.get("COLLECTIVE_FAULT_FIRST", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("COLLECTIVE_FAULT_SEEDS", "1")))
KINDS = {"missing": "missing", "kill": "missing", "stop": "missing"}
FAULTS = ("missing", "operation", "size", "order", "deadlock", "kill", "stop")


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[tuple[str, int], dict]:
    """What was planted and the verdict, by fault and seed."""
    directory = tmp_path_factory.mktemp("faults")
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(SCRIPTS / "collectives/collective_faults.py"),
        str(directory),
    ]
    # Standard error has the messages of processes that gloo aborts.
    made = subprocess.run(
        [*command, *map(str, SEEDS)],
        env=environment(directory, None),
        capture_output=True,
        timeout=60 * len(SEEDS),
    )
    lines = [json.loads(line) for line in made.stdout.splitlines()]
    assert made.returncode == 0 and len(lines) == len(SEEDS) * len(FAULTS), made.stderr[-4000:].decode()
    keys = [(fault, seed) for seed in SEEDS for fault in FAULTS]
    for (fault, seed), line in zip(keys, lines, strict=True):
        line["directory"] = directory / f"{fault}-{seed}"
    return dict(zip(keys, lines, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "deadlock"])
def test_rank_group_call_and_reason_are_right(cases, fault, seed):
    case = cases[fault, seed]
    found = case["verdict"]
    kind = KINDS.get(fault, fault)
    if fault == "order" and max(case["issued"]) == case["sequence"]:
        kind = (
            "size"  # gloo has aborted all ranks before a second call: what they had issued differs in size.
        )
    assert found["kind"] == kind
    assert found["culprits"] == [case["culprit"]]
    assert found["sequence"] == case["sequence"]
    assert found["description"] == ("own" if case["own_group"] else "default_pg")
    assert found["operation"] == "all_reduce" and found["ranks"] == f"0-{case['world'] - 1}"
    if fault in ("missing", "stop"):
        assert case["phase"] in found["reason"]
        assert ("stopped" in found["reason"]) == (fault == "stop")
    if fault == "kill":
        assert "it is dead" in found["reason"]


@pytest.mark.parametrize("seed", SEEDS)
def test_cycle_of_groups_is_shown(cases, seed):
    found = cases["deadlock", seed]["verdict"]
    assert found["kind"] == "deadlock" and found["culprits"] == []
    assert [(one["rank"], one["waits_for"]) for one in found["cycle"]] == [(0, 1), (1, 2), (2, 0)]
    assert len({one["group"] for one in found["cycle"]}) == 3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_flight_recorder_agrees(cases, fault, seed):
    """By the calls that it has of the group: who has fewer, or who has another one under the verdict's number."""
    case = cases[fault, seed]
    found, flights = case["verdict"], case["flights"]
    calls = {int(rank): groups.get(found["description"], []) for rank, groups in flights.items()}
    if fault == "deadlock":
        for link in found["cycle"]:
            group = f"pair {link['rank']}"
            assert len(flights[str(link["rank"])][group]) == link["sequence"]
            assert group not in flights[str(link["waits_for"])]
        return
    at = found["sequence"] - 1
    if fault in ("missing", "kill", "stop"):
        behind = [rank for rank, those in calls.items() if len(those) <= at]
        assert behind == ([case["culprit"]] if fault == "missing" else [])
        return
    others = [those[at] for rank, those in calls.items() if rank != case["culprit"]]
    assert others and all(one == others[0] for one in others)
    if case["culprit"] in calls:  # Else gloo has aborted it.
        assert calls[case["culprit"]][at] != others[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", ["missing", "operation"])
def test_dumps_alone_give_the_same_verdict(cases, fault, seed):
    """Where every rank survives to write one: `goodput analyze --flight`."""
    case = cases[fault, seed]
    for other in case["directory"].glob("over-*"):
        other.unlink()
    found = analyze_flight(case["directory"])
    assert found["errors"] == [] and found["ranks"] == list(range(case["world"]))
    for name in ("kind", "culprits", "sequence", "operation", "description"):
        assert found["verdict"][name] == case["verdict"][name]
