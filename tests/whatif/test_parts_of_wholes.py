"""What a part of a cause would bring never exceeds what the whole cause would, over random steps."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.whatif.runs import team_of, write_run

from goodput.whatif import changes
from goodput.whatif.gains import saved_by
from goodput.whatif.read import read
from goodput.whatif.steps import Team

STEPS = 40


@st.composite
def teams(draw) -> list[Team]:
    """One or two teams of the same run: waits of their own, jitter, slow ranks and phases, with or without stages."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stages = draw(st.sampled_from([(), (0, 0, 1, 1), (0, 1, 2), (0, 0, 0, 1, 1, 2)]))
    ranks = len(stages) or draw(st.integers(1, 6))
    jitter = draw(st.sampled_from([0.0, 0.02, 0.5, 2.0]))
    found = []
    for _ in range(draw(st.integers(1, 2))):
        parts = []
        for typical in (0.1, 0.02):
            slow = draw(st.lists(st.sampled_from([0.0, 1.0, 1.1, 3.0]), min_size=ranks, max_size=ranks))
            parts.append(typical * np.array(slow) * np.exp(jitter * random.standard_normal((STEPS, ranks))))
        length = sum(parts).sum(axis=1).max() + 0.01 if stages else None
        found.append(
            team_of(*parts, exchange=0.01, length=length, stages=stages, microbatches=4 if stages else None)
        )
    return found


def saved(change: changes.Change | None, some: list[Team]) -> float:
    return 0.0 if change is None else saved_by(change, some).value


def at_most(part: float, whole: float) -> None:
    assert part <= whole * (1 + 1e-9) + 1e-3


@settings(max_examples=150)
@given(teams())
@example([team_of(np.repeat([[5.0, 4.0, 3.0, 3.0]], STEPS, 0))])
@example([team_of(np.repeat([[2.0, 1.0]], STEPS, 0))])
@example(
    [team_of(np.repeat([[8.0, 8.0, 8.0, 12.0]], STEPS, 0), stages=(0, 1, 2, 3), microbatches=8, length=15.0)]
)
def test_no_part_brings_more_than_its_whole(some):
    """One rank, or stage, made median against all of them; its loader against all loaders; half of all communication."""
    median = saved(changes.all_as_the_median(), some)
    loaders = saved(changes.state_gone("loader"), some)
    for team in some:
        for change in changes.slow_ranks(team):
            at_most(saved(change, some), median)
            if change.state == "loader":
                at_most(saved(change, some), loaders)
        at_most(saved(changes.slow_stage(team), some), median)
    at_most(saved(changes.communication_less(0.5), some), saved(changes.communication_less(1.0), some))
    assert median >= 0


@pytest.mark.parametrize("slow, ranks", [([2], 4), ([0, 3], 6), ([1], 2)])
def test_answers_and_gains_of_a_run_agree(tmp_path, slow, ranks):
    """The gain of the cause "straggler" is at least that of each rank which `goodput whatif` lists."""
    random = np.random.default_rng(4)
    compute = 0.1 + 0.004 * random.random((100, ranks))
    compute[:, slow] += 0.05
    found, _ = read(write_run(tmp_path / "run.jsonl", {"forward": compute}))
    parts = [one for one in found.answers if one.kind in ("rank", "median", "even")]
    assert {one.kind for one in parts} >= {"median", "even"} | ({"rank"} if len(slow) == 1 else set())
    assert found.gains["straggler"] == pytest.approx(1 + max(one.gain for one in parts))
