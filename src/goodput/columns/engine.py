"""The account's engine over NumPy columns: the same account, computed for all ranks at once."""

from __future__ import annotations

from goodput.account.account import Engine, Restart
from goodput.account.attempts import Run
from goodput.account.facts import Facts
from goodput.account.fold import Fold, PaidOnce
from goodput.account.stall_threshold import PlannedLimits
from goodput.columns.groups import ColumnGroups
from goodput.columns.rank_columns import ColumnRanks, summing_ranks
from goodput.slices import Slices


class ColumnEngine(Engine):
    """Feed it with `columns.fold.fold_columns`."""

    def __init__(
        self,
        run: Run,
        facts: Facts,
        planned: PlannedLimits | None = None,
        groups_type: type[ColumnGroups] = ColumnGroups,
        fold_type: type[Fold] = Fold,
    ):
        super().__init__(run, facts, fold_type, groups_type, planned)

    def summing_ranks(self, restarts: dict[int, Restart], once: PaidOnce) -> Slices[ColumnRanks]:
        return summing_ranks(self, restarts, once)
