"""A generator without steps: the live account, history and the replayed log agree on its rollouts."""

import pytest
from support.account.account_history import Process, ns
from support.aggregator.live_accounts import TwoStores
from support.aggregator.reports import rank_report


@pytest.mark.parametrize("end", ["finished", "killed", "silent"])
def test_accounts_of_rollouts_agree(end, tmp_path):
    """Rollouts of 20 min, which together exceed the limit of one, beside a trainer."""
    both = TwoStores()
    trainer = Process(0, start=1000, world_size=2).steps(120, forward=60).finished()
    generator = Process(1, start=1000, world_size=2, role="generator").between(none=5)
    for _ in range(5):
        generator.between(rollout=1200)
        both.push(rank_report(generator), generator.now_ns)
        both.compare(generator.now_ns)
    both.push(rank_report(trainer), trainer.now_ns)
    getattr(generator, end)()
    both.push(rank_report(generator), generator.now_ns)
    both.compare(trainer.now_ns)
    both.compare_log_and_history(trainer.now_ns + ns(1), tmp_path / "run.jsonl")
