"""Rank pages whose identity changes after they were opened."""

from __future__ import annotations

from support.node.node_rank import Rank

from goodput.rank_page import page


def tell(one: Rank, **fields) -> None:
    one.identity = {**one.identity, **fields}
    page.rewrite_identity(one.words, one.identity)


def move(tree, one: Rank, **fields) -> None:
    """As sdk/move.py does it: the identity, then the name."""
    tell(one, **fields)
    before = tree / "pages" / one.path.rsplit("/", 1)[-1]
    named = (one.identity[name] for name in ("run", "rank", "attempt"))
    before.rename(tree / "pages" / page.file_name(*named))
