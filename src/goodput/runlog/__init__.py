"""The run log: one JSON object per line, from which the account of a run can be computed.

A log is read twice: `scan` finds the attempts and what is wrong with the file, `replay` computes the account.
Memory is bounded by ranks and attempts, plus the lines that are out of order.

    replayed = replay("run.jsonl"); replayed[0].account.ratio("goodput")
"""

from goodput.runlog.log_file import LogError
from goodput.runlog.replay import Replayed, replay

__all__ = ["LogError", "Replayed", "replay"]
