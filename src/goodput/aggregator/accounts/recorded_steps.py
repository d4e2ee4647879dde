"""What stories and replays read of a run: which ranks first, and the rows of an attempt as steps with their time by state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

import numpy as np

from goodput.account import Account
from goodput.account.facts import Key
from goodput.account.states import INDEX, STATES, state_of
from goodput.aggregator.accounts.past import Check
from goodput.aggregator.ledger.stored_process import StoredProcess
from goodput.wire.step_blocks import END, NUMBER, STEP, TOTALS

# The states of a rank's own work, by which ranks are compared.
_OWN = tuple(INDEX[state] for state in ("productive", "loader", "h2d", "launch", "unattributed"))


def ranks_by_excess(account: Account) -> list[int]:
    """Ranks by their own time per step beyond the median of their group, the worst first."""
    own, groups = {}, {}
    for rank, kept, states in zip(*map(account.of, ("rank", "kept_steps", "states")), strict=True):
        if kept:
            own[rank] = sum(states[i] for i in _OWN) / kept
            groups.setdefault(account.straggler.peers(rank), []).append(own[rank])
    medians = {group: median(values) for group, values in groups.items()}
    excess = {rank: ns - medians[account.straggler.peers(rank)] for rank, ns in own.items()}
    culprit = account.straggler.culprit()
    return sorted(own, key=lambda rank: (culprit is None or rank != culprit[0], -excess[rank], rank))


def key_of(process: StoredProcess) -> Key:
    return process.identity.rank, process.identity.attempt


class StepStates(NamedTuple):
    """Some steps in order: their indices, how many each stands for, ns by state (states, steps), and their ends."""

    steps: np.ndarray
    counts: np.ndarray
    states: np.ndarray
    ends: np.ndarray


def step_states(process: StoredProcess, pages: Iterable[np.ndarray], check: Check) -> Iterator[StepStates]:
    """The steps of a process, page by page. The first one has all the time before it."""
    of_phase = [state_of(name, process.phase_states) for name in process.phases]
    before, number = np.zeros(len(of_phase), np.int64), 0
    for values in pages:
        check()
        totals = values[TOTALS : TOTALS + 2 * len(of_phase) : 2]
        spent = np.diff(totals, axis=1, prepend=before[:, None]).clip(min=0)
        states = np.zeros((len(STATES), values.shape[1]), np.int64)
        np.add.at(states, of_phase, spent)
        counts = np.diff(values[NUMBER], prepend=number)
        yield StepStates(values[STEP], counts, states, values[END])
        before, number = totals[:, -1], int(values[NUMBER, -1])
