"""Ledgers as version 4 wrote them, with step rows in MessagePack chunks, of any size.

python -m support.aggregator.old_ledgers sqlite:////tmp/old.db 64 46875     # 3 million rows
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator

import msgspec

from goodput.aggregator.ledger import migrations
from goodput.aggregator.ledger.database import Database, insert
from goodput.aggregator.ledger.migrations.versions import version_4
from goodput.wire import schema

PHASES = (
    "none",
    "loader",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "checkpoint",
    "restore",
)
# Seconds of a phase in one step of about a second, and how much they vary.
LENGTHS = {"loader": (0.05, 0.02), "h2d": (0.01, 0.002), "forward": (0.3, 0.01), "backward": (0.5, 0.02),
           "optimizer": (0.04, 0.001), "communication": (0.1, 0.05)}  # fmt: skip
START_NS = 1_700_000_000 * 10**9


def identity_of(rank: int, run: str = "r1", start_ns: int = START_NS) -> schema.Identity:
    return schema.Identity(run, rank, 1, 1 << 10, f"node-{rank // 8:04d}", 1000 + rank, start_ns)


def report_of(identity: schema.Identity, steps: int, end_ns: int, ended: str = "") -> schema.RankReport:
    live = schema.Live(
        *(end_ns, end_ns, "none", steps, steps, 32 * steps, not ended, ended, end_ns if ended else 0),
        totals=(0,) * len(PHASES),
    )
    return schema.RankReport(identity, steps, PHASES, live)


def rows_of(identity: schema.Identity, steps: int, seed: int = 0) -> Iterator[schema.StepRow]:
    """Steps of about a second whose phases vary by nanoseconds, as a trainer's do; some time between them."""
    rng = random.Random(f"{seed} {identity.rank}")
    totals, outside = [0] * len(PHASES), [0] * len(PHASES)
    end_ns, device_ns = identity.start_ns + 20 * 10**9, 0
    totals[0] = outside[0] = 20 * 10**9
    for number in range(1, steps + 1):
        gap_ns = int(rng.uniform(1e4, 1e5))
        start_ns = end_ns + gap_ns
        end_ns = start_ns
        totals[0] += gap_ns
        outside[0] += gap_ns
        for at, name in enumerate(PHASES):
            if name in LENGTHS:
                usual, spread = LENGTHS[name]
                ns = int(max(rng.gauss(usual, spread), 1e-4) * 1e9)
                totals[at] += ns
                end_ns += ns
        if number % 500 == 0:
            totals[7] += 3 * 10**9
            end_ns += 3 * 10**9
        device_ns += int((end_ns - start_ns) * 0.98)
        yield schema.StepRow(
            number, number - 1, start_ns, end_ns, 32 * number, tuple(totals), tuple(outside), device_ns
        )


def make(url: str, ranks: int, steps: int, chunk_rows: int = 10, ended: str = "") -> None:
    """A ledger of version 4 with one run, its chunks of `chunk_rows` rows as pushes brought them."""
    engine = Database(url).migrating()
    migrations.migrate(engine, "4")
    for rank in range(ranks):
        identity = identity_of(rank)
        key = {column.name: getattr(identity, column.name) for column in version_4.key_columns()}
        chunks, part, end_ns = [], [], identity.start_ns
        for row in rows_of(identity, steps):
            part.append(row)
            end_ns = row.end_ns
            if len(part) == chunk_rows or row.number == steps:
                chunks.append({**key, **chunk_columns(part)})
                part = []
        report = report_of(identity, steps, end_ns, ended)
        values = {**key, "sequence": steps, "report": msgspec.msgpack.encode(report)}
        with engine.begin() as connection:
            connection.execute(version_4.processes.insert(), values)
            if chunks:
                connection.execute(insert(connection.dialect.name, version_4.chunks), chunks)


def chunk_columns(part: list[schema.StepRow]) -> dict:
    """Columns of one chunk, as version 4's `append` wrote them."""
    encoded = msgspec.msgpack.encode(part)
    return {
        "first": part[0].number,
        "last": part[-1].number,
        "digest": int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big", signed=True),
        "start_ns_first": min(row.start_ns for row in part),
        "end_ns_last": max(row.end_ns for row in part),
        "rows": encoded,
    }


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
