"""Renders the collectives of a trace document as two tables of at most 80 columns: what they cost, and who came last."""

from __future__ import annotations

from goodput.account.text import bytes_text, duration_ns

ROWS_MAX = 12


def lines(document: dict) -> list[str]:
    """[] where the traces have no collectives."""
    rows = [row for row in document["collectives"] if row["operation"]]
    if not rows:
        return []
    files, unsized = len(document["ranks"]), sum(row["calls_without_size"] for row in rows)
    without = f"; {unsized} calls have no size in the traces" if unsized else ""
    found = [f"  collectives of {files} ranks together{without}"] if files > 1 else []
    found += [
        f"  {'group':<14}{'operation':<15}{'calls':>7}{'data':>10}{'exposed':>9}{'hidden':>9}{'bus':>12}",
        *[_cost(row) for row in rows[:ROWS_MAX]],
    ]
    if len(rows) > ROWS_MAX:
        found.append(f"  … and {len(rows) - ROWS_MAX} more")
    rest = [row for row in document["collectives"] if not row["operation"]]
    if rest:
        found.append(
            f"  in calls outside of these: {duration_ns(sum(row['exposed_ns'] for row in rest))} exposed"
        )
    return [*found, *_arrivals(document, rows), ""]


def _arrivals(document: dict, rows: list[dict]) -> list[str]:
    if document["collectives_problem"]:
        return ["", f"  {document['collectives_problem']}"]
    compared = [row for row in rows if row["skew_ns"] is not None]
    if not compared:
        few = len(document["ranks"]) > 1 and any(row["group"] for row in rows)
        return ["", "  arrivals unknown: the ranks have fewer than 3 common calls in a group"] if few else []
    return [
        "",
        "  arrivals, on clocks aligned by when ranks leave calls together",
        f"  {'group':<14}{'operation':<15}{'calls':>6}{'skew':>9}{'known to':>10}{'waiting':>9}  last rank",
        *[_arrival(row) for row in compared[:ROWS_MAX]],
    ]


def _cost(row: dict) -> str:
    size = "-" if row["bytes"] is None else bytes_text(row["bytes"])
    bus = row["bus_bytes_per_second"]
    return (
        f"{_head(row)}{row['calls']:>7}{size:>10}{duration_ns(row['exposed_ns']):>9}{duration_ns(row['hidden_ns']):>9}"
        f"{'-' if bus is None else bytes_text(bus) + '/s':>12}"
    )


def _arrival(row: dict) -> str:
    waited, moved = row["waited_ns"], row["transfer_ns"]
    waiting = "-" if not waited and not moved else f"{100 * waited / (waited + moved):.0f} %"
    last = "not clear"
    if row["last_rank"] is not None:
        last = f"{row['last_rank']} in {100 * row['last_share']:.0f} %"
    return (
        f"{_head(row)}{row['compared']:>6}{duration_ns(row['skew_ns']):>9}"
        f"{duration_ns(row['skew_uncertainty_ns']):>10}{waiting:>9}  {last}"
    )


def _head(row: dict) -> str:
    return f"  {(row['group'] or 'unknown')[:13]:<14}{row['operation'][:14]:<15}"
