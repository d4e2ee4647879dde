"""What it costs to thin the steps of a run that is not over, and whether its account stays the same.

    python -m bench.history.going_on [--ranks N] [--steps N] [--keep-seconds N] [--directory DIR] [--json]

The ledger of a run of steps of a second is written directly (ledger.py). An aggregator without HTTP, whose clock is that
of the run's end, moves the run's base on and thins what lies before it: seconds of CPU and rows of each, and the peak of resident
memory. Then its account, and that of another one that reads the ledger as after a restart, are compared with the
one before. Not part of `make bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.history.run import RANKS, RUN
from bench.processes import ROOT, peak_mib
from goodput.account import Account
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.api import ledger_maintenance
from goodput.aggregator.api.ledger_maintenance import LedgerMaintenance
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import bases
from goodput.aggregator.ledger.compaction import Keep
from goodput.aggregator.ledger.inspection import size_bytes
from goodput.aggregator.ledger.ledger import Ledger

START_NS = 1_800_000_000 * 10**9
# In a process of its own, which takes gigabytes.
WRITE = "import sys; from pathlib import Path; from bench.history.ledger import write; write(Path(sys.argv[1]), *map(int, sys.argv[2:]))"


class Aggregator:
    def __init__(self, ledger: Ledger, now_ns: int, keep_seconds: float):
        self.ingest = Ingest(Store(), ledger, clock_ns=lambda: now_ns)
        self.accounts = Accounts(
            self.ingest._store,
            stall_seconds=60,
            stale_seconds=60,
            history=History(ledger),
            clock_ns=lambda: now_ns,
        )
        self.maintenance = LedgerMaintenance(
            ledger, self.ingest, self.accounts, Keep(keep_seconds / 86_400, 90)
        )
        self.ingest.restore(then=self.maintenance.restored)

    def account(self) -> Account:
        self.accounts.expire(RUN)
        return self.accounts.account(RUN)


def measured(directory: Path, ranks: int, steps: int, keep_seconds: float) -> dict:
    subprocess.run(
        [sys.executable, "-c", WRITE, str(directory), str(ranks), str(steps), str(START_NS)],
        check=True,
        cwd=ROOT,
    )
    ledger, now_ns = Ledger(f"sqlite:///{directory}/ledger.db"), START_NS + steps * 10**9
    try:
        one = Aggregator(ledger, now_ns, keep_seconds)
        before, states = one.account(), len(ledger.segment_rows(RUN))
        found = {"python": sys.version.split()[0], "ranks": ranks, "steps": steps, "states_before": states}
        ledger_maintenance.WAIT_TIMES = 0
        for name, work in (
            ("move", one.maintenance.move_bases(now_ns)),
            ("thin", one.maintenance.compact(now_ns, search=False)),
        ):
            began = time.process_time()
            asyncio.run(work)
            found[f"{name}_cpu_seconds"] = round(time.process_time() - began, 2)
        counts = one.maintenance.compaction.counts
        return found | {
            "states_left": len(ledger.segment_rows(RUN)),
            "base_rows": bases.stored(ledger.fetch, RUN)[0].rows,
            "rows_thinned": counts.rows_thinned,
            "thin_us_a_row": round(1e6 * found["thin_cpu_seconds"] / max(counts.rows_thinned, 1), 2),
            "mib_freed": round(counts.bytes_freed / 2**20, 1),
            "mib": round(size_bytes(ledger) / 2**20, 1),
            "peak_mib": round(peak_mib("self"), 1),
            "is_same": one.account() == before,
            "is_same_after_restart": Aggregator(ledger, now_ns, keep_seconds).account() == before,
        }
    finally:
        ledger.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--steps", type=int, default=8_000)
    parser.add_argument(
        "--keep-seconds", type=float, default=1_800.0, help="for which steps are kept (%(default)s)"
    )
    parser.add_argument(
        "--directory", type=Path, help="where the ledger is written (default: a temporary one)"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        found = measured(Path(directory), arguments.ranks, arguments.steps, arguments.keep_seconds)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(f"{name:<22} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
