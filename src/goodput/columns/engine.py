"""The account's engine over NumPy columns: the same account, computed for all ranks at once."""

from __future__ import annotations

from copy import copy

import numpy as np

from goodput.account.account import Engine, FoldSums, PaidOnce
from goodput.account.attempts import Run
from goodput.account.facts import Facts, Key
from goodput.account.resume import Restart
from goodput.account.stall_threshold import PlannedLimits
from goodput.account.states import vector
from goodput.account.straggler import Straggler
from goodput.columns.facts import ColumnFacts, in_columns
from goodput.columns.finish import finishing
from goodput.columns.fold_table import FoldTable, RowFold
from goodput.columns.groups import ColumnGroups
from goodput.columns.rank_columns import ColumnRanks, summing_ranks
from goodput.columns.run_columns import RunColumns
from goodput.columns.stragglers import summing_stragglers
from goodput.slices import Slices, result_of


class ColumnEngine(Engine):
    """Feed it with `columns.fold.fold_columns`."""

    folds: FoldTable  # type: ignore[assignment]
    facts: ColumnFacts
    _members: tuple[int, int, int] | None = None  # what groups depend on
    groups: ColumnGroups

    def __init__(
        self,
        run: Run,
        facts: Facts,
        planned: PlannedLimits | None = None,
        groups_type: type[ColumnGroups] = ColumnGroups,
        fold_type: type[RowFold] = RowFold,
    ):
        planned = PlannedLimits() if planned is None else planned
        facts = in_columns(run, facts)
        super().__init__(run, facts, groups_type, planned, FoldTable(planned, fold_type, len(run.attempts)))

    def _begin_folds(self, keys: list[Key]) -> None:
        self.folds.begin(keys, [self.run.attempts[key] for key in keys])
        self._follow(self.facts, keys)

    def _follow(self, facts: ColumnFacts, keys: list[Key]) -> bool:
        """Let the folds of these attempts follow the facts, all or, if that would change one, none."""
        attempts, criteria = facts.attempts, facts.columns
        assert attempts is not None and criteria is not None
        at = attempts.rows(self.folds)
        if len(keys) < len(at):
            places = np.array([attempts.places[key] for key in keys], np.int64)
            at, criteria = at[places], criteria.part(places)
        else:
            keys = attempts.keys
        return self.folds.follow(at, criteria, facts.threshold_ns, lambda place: facts.criteria(keys[place]))

    def copy(self) -> ColumnEngine:
        return result_of(self.copying())

    def follow(self, facts: Facts) -> bool:
        """Continue under newer facts of the same run; False if folded steps would differ under them."""
        return result_of(self.following(facts))

    def following(self, facts: Facts) -> Slices[bool]:
        """As `follow`, in slices. Where it is not finished the folds may have followed, which is right too."""
        if self.groups.has_late:
            return False
        facts, known, new = in_columns(self.run, facts), [], []
        for key in facts.bounds:
            (known if key in self.folds else new).append(key)
        if known and not self._follow(facts, known):
            return False
        self.facts = facts
        yield
        if new:
            self._begin_folds(new)
            self.folds.final[self.folds.rows(new)] = False
        if self._may_regroup(facts.attempts):
            self.groups.find_members()
        yield
        return not self.groups.has_late

    def _may_regroup(self, attempts: RunColumns | None) -> bool:
        """Whether an attempt may have come into a group since the last time, or be late for one that has begun."""
        assert attempts is not None
        has_steps = np.array([one.first_step is not None for one in attempts.attempts], bool)
        members = attempts.changes(), int(has_steps.sum()), len(self.folds)
        before, self._members = self._members, members
        return members != before or bool(
            (has_steps & (self.folds.steps[attempts.rows(self.folds)] == 0)).any()
        )

    def copying(self) -> Slices[ColumnEngine]:
        """As `copy`, in slices."""
        other = copy(self)
        other.planned, other.folds = self.planned.copy(), self.folds.copy()
        other.folds.planned = other.planned
        yield
        other.groups = self.groups.copy(other.folds)
        return other

    def _settling(self, tails: dict[Key, list[int]] | None) -> Slices[None]:
        at, firsts = yield from finishing(self, tails, vector())
        self.groups.add_firsts(at, firsts)
        yield from self.groups.flushing()

    def sum_folds(self) -> FoldSums:
        table, used = self.folds, slice(self.folds.used)
        ends = table.last_end_ns[used][table.steps[used] > 0]
        return FoldSums(
            int(ends.max()) if len(ends) else None,
            int(table.clamped[used].sum()),
            sum(table.objects["samples"]),
            int(np.minimum(table.top_step, table.limit)[used].max(initial=-1)),
        )

    def summing_stragglers(self) -> Slices[Straggler]:
        return summing_stragglers(self.groups)

    def summing_ranks(self, restarts: dict[int, Restart], once: PaidOnce) -> Slices[ColumnRanks]:
        return summing_ranks(self, restarts, once)
