"""Pure arithmetic: from what the ranks recorded to the account that closes.

Files: states.py (the words), timeline.py (what came in), cut.py (one attempt's time into states), resume.py
(kept and lost), straggler.py (who waited for whom), account.py (the sums and factors), document.py (the JSON
shape), text.py (for people). Integers of nanoseconds until the document. No I/O and no clock: `now` comes in.
"""

from goodput.account.account import Account, compute
from goodput.account.document import document
from goodput.account.timeline import TOLD, Attempt, Event, Row, Run

__all__ = ["TOLD", "Account", "Attempt", "Event", "Row", "Run", "compute", "document"]
