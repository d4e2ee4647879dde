"""Rank pages with fields that are declared after they were opened."""

from __future__ import annotations

from support.node.node_rank import Rank

from goodput.rank_page import page


def declare(rank: Rank, **fields) -> None:
    rank.identity = {**rank.identity, **fields}
    page.rewrite_identity(rank.words, rank.identity)
