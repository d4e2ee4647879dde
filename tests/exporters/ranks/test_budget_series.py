"""What measuring may cost, as the page says it: a series where a budget is kept, none where nobody keeps one."""

import pytest
from support.node.node_rank import Rank
from support.node.node_tree import samples

from goodput.metrics import Families
from goodput.rank_page import page


@pytest.mark.parametrize(
    ("words", "budget"),
    [({"phases_measured": 1, "budget_ppm": 5000}, 0.005), ({"phases_measured": 1}, None), ({}, None)],
)
def test_the_budget_is_a_series_where_it_is_kept(tree, ranks, words, budget):
    rank = Rank(tree / "pages")
    for name, value in words.items():
        rank.words[page.W_SAMPLING + page.SAMPLING.index(name)] = value
    rank.step({"loader": 1000})
    families = Families("node")
    ranks.poll()
    ranks.collect(families)
    assert samples(families).get(("goodput_sdk_budget_ratio", ("0", "r1"))) == budget
