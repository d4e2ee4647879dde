"""The link of one rank of real processes over gloo, each in a network namespace, is slow or carries nothing: it is named.

And where ranks are late or missing, or all links are long, none is. `make slow-links` runs 10 seeds of each.
"""

import json
import os

import pytest
from support.frameworks.script_process import run_script
from support.installed import need
from support.node.tun_network import is_possible

need("torch")
pytestmark = pytest.mark.skipif(
    not is_possible(), reason="needs root, /dev/net/tun and ip, for network namespaces"
)
SEEDS = int(os.environ.get("SLOW_LINK_SEEDS", "0"))
# What is wrong; without SLOW_LINK_SEEDS one slow link, one that is dead, and one rank that is late.
KINDS = ("loss", "delay", "rate", "stall", "healthy", "late", "far", "missing")
NAMES = [f"{kind}-{seed}" for seed in range(1, 1 + SEEDS) for kind in KINDS] or [
    "rate-5",
    "stall-5",
    "late-5",
]


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, dict]:
    """What was planted and the verdict."""
    found = {}
    for at in range(0, len(NAMES), len(KINDS)):
        some, place = NAMES[at : at + len(KINDS)], tmp_path_factory.mktemp("links")
        done = run_script("collectives/slow_links.py", place, *some, forked="torch")
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found |= {f"{one['kind']}-{one['seed']}": one for one in lines}
    return found


@pytest.mark.parametrize("name", [one for one in NAMES if one.startswith(("loss", "delay", "rate"))])
def test_slow_link_names_its_rank(cases, name):
    """In each window after the one in which the link became slow."""
    case = cases[name]
    assert case["before"] is None
    for link in case["found"][1:]:
        assert link is not None
        assert (link["rank"], link["address"]) == (case["culprit"], case["address"]) or _is_end(link, case)

    assert "has a slow link: " in case["advice"]["communication"]


def _is_end(link: dict, case: dict) -> bool:
    """Where one flow alone is slow either end may be: the rank is one of the pair that is named."""
    return link["flows"] == 1 and case["culprit"] in (link["sender"], link["receiver"])


@pytest.mark.parametrize("name", [one for one in NAMES if one.startswith("stall")])
def test_link_that_carries_nothing_is_named_in_the_hang(cases, name):
    case = cases[name]
    found = case["hang"]["collective"]
    assert (found["kind"], found["culprits"]) == ("network", [found["slow_link"]["rank"]])
    assert found["slow_link"]["rank"] == case["culprit"] or _is_end(found["slow_link"], case)
    assert case["hang"]["culprit"] == found["culprits"][0]


@pytest.mark.parametrize("name", [one for one in NAMES if one.startswith(("healthy", "late", "far"))])
def test_no_link_is_named_where_none_is_slow(cases, name):
    case = cases[name]
    assert [case["before"], *case["found"]] == [None] * (1 + len(case["found"]))
    assert "slow link" not in case["advice"].get("communication", "")
    if name.startswith("late"):
        assert f"waiting for rank {case['culprit']}" in case["advice"]["straggler"]


@pytest.mark.parametrize("name", [one for one in NAMES if one.startswith("missing")])
def test_missing_rank_is_no_slow_link(cases, name):
    case = cases[name]
    assert case["hang"]["culprit"] == case["culprit"] and case["hang"]["collective"]["slow_link"] is None
