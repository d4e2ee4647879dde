"""The run log: one JSON object per line, from which an account can be computed by whoever has the file.

Files: lines.py (one line), source.py (a file, packed or not, read as often as needed), scan.py (first pass: what
must be known before a step can be judged, and what is wrong with the file), complete.py (what attempts lack when
all lines were seen once), replay.py (second pass: the account),
export.py (the ledger as a log). Memory is bounded by ranks and attempts, plus what lies out of order.

    found = replay("run.jsonl"); found[0].account.ratio("goodput")
"""

from goodput.runlog.replay import Replayed, replay
from goodput.runlog.source import LogError

__all__ = ["LogError", "Replayed", "replay"]
