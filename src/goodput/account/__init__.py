"""Pure arithmetic: from the recorded steps of a run's ranks to an account whose states sum to the wall time.

The path of a step: `attempts` (records), `resume` (kept or lost) and `facts` (what decides on a step), `by_core` (sums
of attempts, ranks compared), `straggler` and `slow_ranks` (who is slow), `ranks` and `account` (ranks and factors),
`figures`, `flops` and `peaks` (what follows), `document` (JSON) and `text`. Times are integers of nanoseconds until
the document. No I/O and no clock.
"""

from goodput.account.account import Account
from goodput.account.attempts import ABANDONED, DECLARED, Attempt, EndMark, Event, Row, Run
from goodput.account.by_core.compute import compute
from goodput.account.document import document
from goodput.account.facts import END_REASONS, FINAL_STATUSES

__all__ = [
    "ABANDONED",
    "DECLARED",
    "END_REASONS",
    "FINAL_STATUSES",
    "Account",
    "Attempt",
    "EndMark",
    "Event",
    "Row",
    "Run",
    "compute",
    "document",
]
