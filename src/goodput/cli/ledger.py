"""`goodput ledger`: show, compact, check, back up a ledger, and delete a run from it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from goodput.cli import fail, has_colour, message, number
from goodput.cli.parsing.progress_line import ProgressLine
from goodput.defaults import KEEP_MINUTES_DAYS, KEEP_STEPS_DAYS

DESCRIPTION = """Look after a ledger, also while an aggregator uses it: show its size, growth and contents, compact it,
check it, back it up, and delete a run."""
EPILOG = """examples:
  goodput ledger show --ledger sqlite:////var/lib/goodput/ledger.db
  goodput ledger show --json
  goodput ledger compact                merge small blocks, thin closed runs, as the aggregator does by itself
  goodput ledger check                  exit status 1 if something is damaged, and where
  goodput ledger backup copy.db         SQLite; for PostgreSQL use pg_dump
  goodput ledger delete my-run          asks first; --yes does not
  goodput ledger delete --match 'sweep-*' --older-than 30 --dry-run

exit status: 0 success; 1 it failed, or `check` found damage; 2 a wrong call
"""

DAMAGES_SHOWN_MAX = 100


def add_options(parser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    show = actions.add_parser("show", help="size, growth per day, and what each tier holds")
    show.add_argument("--json", action="store_true", help="print JSON")
    compact = actions.add_parser("compact", help="merge small blocks and thin closed runs now")
    for action in (show, compact):
        add_keep_options(action.add_argument)
    compact.add_argument("--vacuum", action="store_true",
        help="then give free space back to the file system; SQLite rewrites the file, and pushes wait meanwhile")  # fmt: skip
    actions.add_parser("check", help="decode every block and check all references")
    copy = actions.add_parser("backup", help="copy an SQLite ledger to a file, while it is in use")
    copy.add_argument("file", metavar="FILE", help="file to write, which must not exist")
    _add_delete(actions.add_parser("delete", help="delete runs whose processes have ended"))
    for action in actions.choices.values():
        action.add_argument("--ledger", metavar="URL",
            help="SQLAlchemy URL (default: SQLite file goodput-ledger.db in this folder)")  # fmt: skip


def _add_delete(delete) -> None:
    add = delete.add_argument
    add("run", metavar="RUN", nargs="?", help="the run's name; without it the runs that all options choose")
    add("--match", metavar="GLOB", help="runs whose name matches a shell pattern (* also matches slashes)")
    add("--tenant", metavar="NAME", help="runs named NAME/…; --match then selects among those")
    add("--older-than", metavar="DAYS", type=number(float, 0, 36_500, " days"),
        help="runs of which no rank was seen for so many days")  # fmt: skip
    add("--dry-run", action="store_true", help="list the runs, and delete nothing")
    add("--yes", action="store_true", help="do not ask")


def add_keep_options(add) -> None:
    """--keep-steps and --keep-minutes, of `goodput serve` too."""
    days = number(float, 0, 36_500, " days")
    add("--keep-steps", type=days, default=KEEP_STEPS_DAYS, metavar="DAYS",
        help="keep every step for so many days, of a run that is over from its end on, then one row a minute (default: %(default)s)")  # fmt: skip
    add("--keep-minutes", type=days, default=KEEP_MINUTES_DAYS, metavar="DAYS",
        help="keep minutes for so many days, counted the same way, then one row an hour (default: %(default)s)")  # fmt: skip


def call(arguments) -> int:
    from goodput.aggregator.ledger.inspection import has_lost_log
    from goodput.aggregator.ledger.ledger import Ledger, LedgerError

    actions = {"show": _show, "compact": _compact, "check": _check, "backup": _backup, "delete": _delete}
    url = arguments.ledger or f"sqlite:///{os.path.abspath('goodput-ledger.db')}"
    # To be asked before the ledger is opened, which begins a new one.
    arguments.has_lost_log = url.startswith("sqlite:///") and has_lost_log(url.removeprefix("sqlite:///"))
    try:
        with contextlib.closing(
            Ledger(url, create=False, progress=ProgressLine("converting", "ledger"))
        ) as ledger:
            return actions[arguments.action](ledger, arguments)
    except LedgerError as error:
        return fail("ledger", error)


def _show(ledger, arguments) -> int:
    import msgspec

    from goodput.account.text import wrap
    from goodput.aggregator.ledger.inspection import contents

    found = contents(ledger, arguments.keep_steps, time.time_ns())
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
        return 0
    print(f"{found.ledger}: {_size(found.bytes)}, of which {_size(found.free_bytes)} free")
    print(
        f"{found.runs} runs ({found.closed_runs} closed), {found.processes} rank processes, {found.events} events"
    )
    print(f"growth: {_growth(found)}")
    rows = [("TIER", "BLOCKS", "ROWS", "SIZE", "B/STEP", "FROM", "TO")]
    for tier in found.tiers:
        a_step = f"{tier.bytes / tier.steps:.1f}" if tier.steps else "-"
        times = _from_to(tier.oldest, tier.newest)
        rows.append((tier.name, f"{tier.blocks:,}", f"{tier.rows:,}", _size(tier.bytes), a_step, *times))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for at, row in enumerate(rows):
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        print(_bold(line) if at == 0 else line)
    if found.steps_kept_longer:
        kept = (
            f"{found.steps_kept_longer:,} steps are older than {arguments.keep_steps:g} days and not thinned: an aggregator "
            "thins those of a running run some times in that many days, and others after their end (goodput end RUN)"
        )
        print(wrap(kept))
    return 0


def _growth(found) -> str:
    from goodput.account.text import duration

    if found.bytes_per_day is None:
        return "unknown: less than a minute of steps is not thinned"
    over = "day" if found.growth_seconds >= 86_400 else duration(found.growth_seconds)
    return f"about {_size(found.bytes_per_day)} a day, at the rate of the last {over}"


def _compact(ledger, arguments) -> int:
    from goodput.aggregator.ledger.compaction import Compaction, Keep

    compaction = Compaction(ledger, Keep(arguments.keep_steps, arguments.keep_minutes))
    progress = ProgressLine("compacting", "ledger")
    for _ in compaction.work(time.time_ns(), merge_all=True):
        progress(compaction.counts.blocks_merged + compaction.counts.blocks_thinned, None)
    progress.end()
    counts = compaction.counts
    print(
        f"merged {counts.blocks_merged:,} small blocks, thinned {counts.blocks_thinned:,} blocks by "
        f"{counts.rows_thinned:,} rows, {_size(counts.bytes_freed)} freed"
    )
    if arguments.vacuum and ledger.file is None:
        message("ledger", "PostgreSQL vacuums by itself; VACUUM FULL gives space back to the file system")
    elif arguments.vacuum:
        ledger.vacuum()
    return 0


def _check(ledger, arguments) -> int:
    from goodput.aggregator.ledger.inspection import damages, newest_report

    progress, found = ProgressLine("checking", "ledger"), 0
    for damage in damages(ledger, progress):
        found += 1
        if found <= DAMAGES_SHOWN_MAX:
            progress.end()
            print(damage)
    progress.end()
    if found > DAMAGES_SHOWN_MAX:
        print(f"and {found - DAMAGES_SHOWN_MAX} more")
    if arguments.has_lost_log:
        print(
            "its write-ahead log (-wal) is gone, and with it up to 16 MB of pushes that agents take for stored; put it back, or "
            f"the last backup.{_last_report(newest_report(ledger))}"
        )
        return fail("ledger", f"{ledger.url} was not closed, and its write-ahead log is gone")
    if found:
        return fail("ledger", f"{found} damaged places in {ledger.url}")
    print(f"{ledger.url} is whole")
    return 0


def _last_report(newest: float | None) -> str:
    if newest is None:
        return ""
    return f" It ends with the reports of {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(newest))}."


def _backup(ledger, arguments) -> int:
    from goodput.aggregator.ledger.inspection import backup

    if ledger.file is None:
        return fail("ledger", "backup copies SQLite ledgers; for PostgreSQL use pg_dump", 2)
    if os.path.lexists(arguments.file):
        return fail("ledger", f"{arguments.file} exists; name another file", 2)
    progress = ProgressLine("copying", "ledger")
    try:
        backup(ledger, arguments.file, progress)
    except OSError as error:
        return fail("ledger", f"{arguments.file}: {error.strerror}")
    progress.end()
    print(f"{arguments.file}: {_size(os.path.getsize(arguments.file))}")
    return 0


def _delete(ledger, arguments) -> int:
    from goodput.aggregator.ledger.deletion import delete, life_of
    from goodput.wire.identity import clean_text

    if arguments.match is not None or arguments.tenant is not None or arguments.older_than is not None:
        return _delete_chosen(ledger, arguments)
    if arguments.run is None:
        return fail("ledger", "delete: name a RUN, or choose runs by --match, --tenant or --older-than", 2)
    run, shown = arguments.run, clean_text(arguments.run, 128)
    if run not in ledger.runs():
        return fail("ledger", f"no run {shown!r} in {ledger.url}")
    ranks = life_of(ledger, run, time.time_ns()).reporting
    if ranks:
        named = ", ".join(map(str, ranks[:8])) + ", …" * (len(ranks) > 8)
        return fail(
            "ledger", f"run {shown} is running: {len(ranks)} ranks reported recently ({named}); end it first"
        )
    if arguments.dry_run:
        print(f"would delete run {shown}")
        return 0
    if not arguments.yes and not _confirmed(f"delete run {shown} from {ledger.url} for good?"):
        return fail("ledger", "nothing was deleted; --yes does not ask")
    progress, deleted = ProgressLine("deleting", "ledger"), 0
    for deleted in delete(ledger, run):
        progress(deleted, None)
    progress.end()
    print(f"deleted run {shown}: {deleted:,} blocks")
    return 0


def _delete_chosen(ledger, arguments) -> int:
    """Delete the runs that all options choose, but for those that report."""
    from goodput.access.tokens import make
    from goodput.aggregator.ledger.deletion import delete, lives
    from goodput.wire.identity import clean_text

    if arguments.run is not None:
        return fail("ledger", "delete: RUN and --match, --tenant or --older-than exclude each other", 2)
    try:
        # Names are chosen as the runs of a token are, within the same bounds.
        chosen = make("delete", "read", runs=(arguments.match or "*",), tenant=arguments.tenant)[1].access()
    except ValueError as error:
        return fail("ledger", f"delete: {error}", 2)
    now_ns, age_ns = time.time_ns(), int((arguments.older_than or 0) * 86_400e9)
    found = list(lives(ledger, chosen.may, now_ns, age_ns))
    running, over = [one for one in found if one.reporting], [one for one in found if not one.reporting]
    for one in found:
        seen = time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(one.seen_ns / 1e9))
        kept = "  kept: its ranks report" if one.reporting else ""
        print(f"{clean_text(one.run, 128)}  last seen {seen}{kept}")
    kept = f"; {len(running)} that report are kept" * bool(running)
    if arguments.dry_run or not over:
        print(f"would delete {len(over)} runs{kept}" if over else f"no run to delete{kept}")
        return 0
    if not arguments.yes and not _confirmed(f"delete {len(over)} runs from {ledger.url} for good?"):
        return fail("ledger", "nothing was deleted; --yes does not ask")
    progress, blocks = ProgressLine("deleting runs", "ledger"), 0
    for done, one in enumerate(over, 1):
        blocks += max(delete(ledger, one.run), default=0)
        progress(done, len(over))
    progress.end()
    print(f"deleted {len(over)} runs: {blocks:,} blocks{kept}")
    return 0


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", flush=True, file=sys.stderr)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if has_colour() else text


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def _from_to(oldest: float | None, newest: float | None) -> tuple[str, str]:
    """Two moments, UTC; to the minute if less than a day lies between them."""
    if oldest is None or newest is None:
        return "-", "-"
    form = "%Y-%m-%d" if newest - oldest >= 86_400 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.gmtime(oldest)), time.strftime(form, time.gmtime(newest))
