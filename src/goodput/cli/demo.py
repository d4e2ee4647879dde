"""`goodput demo`: a real training run on this machine, with planted faults, and where its time went."""

from __future__ import annotations

import argparse
import json
import signal
import sys

from goodput.cli import fail, number

DESCRIPTION = """Train a small language model on a few processes with a slow loader on one rank, kill one rank in
the middle, restart from the checkpoint, and print where the time went. Needs no GPU and no server."""
EPILOG = """example:
  goodput demo --ranks 4 --slow-rank 1 --loader-delay 0.03 --json demo.json"""


def add_options(parser) -> None:
    add = parser.add_argument
    add(
        "--ranks", metavar="N", type=number(int, 2, 16), default=4, help="rank processes, 2 to 16 (default 4)"
    )
    add("--seconds", metavar="S", type=number(float, 2, 600, " seconds"), default=20.0,
        help="length of training (default 20)")  # fmt: skip
    add("--slow-rank", metavar="R", help='rank with a slow loader, or "none" (default 2, or the last)')
    add("--loader-delay", metavar="SECONDS", type=number(float, 0, 10, " seconds"), default=0.02,
        help="delay of that loader per batch (default 0.02)")  # fmt: skip
    add("--kill-at", metavar="STEP", type=_step, default="auto",
        help='step in which a rank is killed, reached within 45 s or not at all, or "none" (default: middle)')  # fmt: skip
    add("--full", action="store_true", help="print all that is known of the run")
    add("--json", metavar="FILE", nargs="?", const="-",
        help="write the planted faults and the account (default FILE: standard output)")  # fmt: skip
    add("--keep", action="store_true", help="leave the server running and print its address")


def call(arguments) -> int:
    from goodput.demo.run import Demo, DemoError, Options

    try:
        slow_rank = _slow_rank(arguments.slow_rank, arguments.ranks)
        if arguments.json not in (None, "-"):
            open(arguments.json, "a").close()
    except ValueError as error:
        return fail("demo", error, 2)
    except OSError as error:
        return fail("demo", f"--json {arguments.json}: {error.strerror}", 2)
    options = Options(
        ranks=arguments.ranks,
        seconds=arguments.seconds,
        slow_rank=slow_rank,
        loader_delay_seconds=arguments.loader_delay,
        kill_at=arguments.kill_at,
        keep=arguments.keep,
    )
    demo = Demo(options)
    for ending in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(ending) != signal.SIG_IGN:  # As in a job in the background.
            signal.signal(ending, demo.interrupt)  # Ends the child processes.
    try:
        outcome = demo.run()
    except DemoError as error:
        return fail("demo", error)
    _print(outcome, arguments)
    return 0


def _slow_rank(text: str | None, ranks: int) -> int | None:
    """Raises ValueError for anything but a rank, "none", or None for the default."""
    if text == "none":
        return None
    rank = min(2, ranks - 1) if text is None else int(text) if text.isdigit() else ranks
    if rank >= ranks:
        raise ValueError(f'--slow-rank {text}: expected a rank from 0 to {ranks - 1}, or "none"')
    return rank


def _step(text: str) -> int | str | None:
    if text.isdigit():
        return int(text)
    if text not in ("auto", "none"):
        raise argparse.ArgumentTypeError(f'{text!r}: expected a step from 0, or "none"')
    return None if text == "none" else text


def _print(outcome, arguments) -> None:
    from goodput.account.text import wrap
    from goodput.cli.run_logs.output import account_text

    found = json.dumps({"planted": outcome.planted, "account": outcome.account}, indent=2)
    if arguments.json == "-":
        print(found)
    else:
        print(account_text(outcome.account, arguments.full))
        print(f"\n{wrap(_planted_line(outcome.planted))}")
    if arguments.json not in (None, "-"):
        with open(arguments.json, "w") as file:
            file.write(found + "\n")
        print(f"  written to {arguments.json}")
    if arguments.keep:
        where = sys.stderr if arguments.json == "-" else sys.stdout
        print(
            f"  page: {outcome.address}/   (stop it with: kill {outcome.server_pid}; its files: {outcome.folder})",
            file=where,
        )


def _planted_line(planted: dict) -> str:
    parts = []
    if planted["slow_rank"] is not None:
        delay = 1e3 * planted["loader_delay_seconds"]
        parts.append(
            f"rank {planted['slow_rank']} slept {planted['loader_seconds']:.2f} s in its loader ({delay:g} ms a batch)"
        )
    if planted["kill_step"] is not None:
        parts.append(
            f"rank {planted['killed_rank']} was killed in step {planted['kill_step']}, {planted['steps_redone']} "
            f"rank-steps were done again, the run was down for {planted['down_seconds']:.2f} s"
        )
    elif planted["kill_at"] is not None:
        parts.append(f"the kill planned for step {planted['kill_at']} was not reached")
    return "  in truth: " + ("; ".join(parts) or "no trouble was planted")
