"""Renders the document of Flight Recorder dumps as text of at most 80 columns."""

from __future__ import annotations

from goodput.account.text import bytes_text, duration_ns, wrap
from goodput.trace.text import clean

ROWS_MAX = 20


def render(document: dict) -> str:
    """What is wrong, and a row for each operation of each process group."""
    ranks, found = document["ranks"], document["verdict"]
    shown = ", ".join(map(str, ranks[:16])) + (", …" if len(ranks) > 16 else "")
    lines = [f"dumps of {len(ranks)} rank{'s' * (len(ranks) != 1)}: {shown}", ""]
    if found is None:
        lines.append("  no call is open that explains a hang")
    else:
        lines.append(f"  {found['kind']}: {found['reason']}")
    lines += [
        "",
        f"  {'group':<15}{'operation':<15}{'ranks':>5}{'calls':>8}{'data':>9}{'open':>6}{'skew':>8} {'last rank':>11}",
    ]
    for row in document["operations"][:ROWS_MAX]:
        group = row["description"] if row["description"] not in ("", "undefined") else row["group"]
        skew, last = "-", "-"
        if row["skew_ns"] is not None:
            skew = duration_ns(row["skew_ns"])
            # Where all come at the same time, none comes last.
            if row["last_rank"] is not None:
                last = f"{row['last_rank']}, {100 * row['last_share']:.0f} %"
        lines.append(
            f"  {group[:14]:<15}{row['operation'][:14]:<15}{row['ranks']:>5}{row['calls']:>8}"
            f"{bytes_text(row['bytes']):>9}{row['open']:>6}{skew:>8} {last:>11}"
        )
    more = len(document["operations"]) - ROWS_MAX
    lines += [f"  … and {more} more"] if more > 0 else []
    return "\n".join(wrap(clean(line)) for line in lines)
