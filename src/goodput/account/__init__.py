"""Pure arithmetic: from what the ranks recorded to the account that closes.

Files, as a step goes: states.py (the words), timeline.py (what came in), lengths.py (how long is a stall), resume.py
(kept and lost), facts.py (what must be known of the whole run), fold.py (one attempt's steps into sums), straggler.py
and onset.py (who waited for whom, since when), account.py (ranks and factors), figures.py, flops.py and peaks.py
(what follows from them), hang.py (who hangs), loader.py (what the waits for the data loader
were for), hardware.py (what samples of the GPU add), document.py (the JSON shape), text.py (for people). Integers of nanoseconds until the document. No I/O and
no clock: `now` comes in.
"""

from goodput.account.account import Account, compute
from goodput.account.document import document
from goodput.account.facts import FINAL_STATUSES
from goodput.account.timeline import TOLD, Attempt, EndMark, Event, Row, Run

__all__ = [
    "FINAL_STATUSES",
    "TOLD",
    "Account",
    "Attempt",
    "EndMark",
    "Event",
    "Row",
    "Run",
    "compute",
    "document",
]
