"""`goodput demo`: a real training run on this machine, with planted faults, and where its time went."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="train a small model with planted faults and account for every second",
        description="Train a small language model on a few processes with a slow loader on one rank, kill one rank in\n"
        "the middle, restart from the checkpoint, and print where the time went. Needs no GPU and no server.",
        epilog="example: goodput demo --ranks 4 --slow-rank 1 --loader-delay 0.03 --json demo.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--ranks", type=int, default=4, metavar="N", help="rank processes, 2 to 16 (default 4)"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="length of training (default 20)"
    )
    parser.add_argument(
        "--slow-rank",
        default=None,
        metavar="R",
        help='rank with a slow loader, or "none" (default 2, or the last)',
    )
    parser.add_argument(
        "--loader-delay",
        type=float,
        default=0.02,
        metavar="SECONDS",
        help="delay of that loader per batch (default 0.02)",
    )
    parser.add_argument(
        "--kill-at",
        default="auto",
        metavar="STEP",
        help='step in which a rank is killed, reached within 45 s or not at all, or "none" (default: middle)',
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the planted faults and the account (default FILE: standard output)",
    )
    parser.add_argument("--keep", action="store_true", help="leave the server running and print its address")
    parser.set_defaults(call=call)


def call(arguments) -> int:
    from goodput.demo.run import Demo, DemoError

    try:
        options = _options(arguments)
        if arguments.json not in (None, "-"):
            open(arguments.json, "a").close()
    except ValueError as error:
        print(f"goodput demo: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"goodput demo: --json {arguments.json}: {error.strerror}", file=sys.stderr)
        return 2
    demo = Demo(options)
    signal.signal(signal.SIGTERM, demo.interrupt)  # Ends the child processes.
    try:
        outcome = demo.run()
    except DemoError as error:
        print(f"goodput demo: {error}", file=sys.stderr)
        return 1
    _print(outcome, arguments)
    return 0


def _options(arguments):
    """The demo's options. Raises ValueError with the wrong argument and its range."""
    from goodput.demo.run import Options

    if not 2 <= arguments.ranks <= 16:
        raise ValueError(f"--ranks {arguments.ranks}: want 2 to 16")
    if not 2 <= arguments.seconds <= 600:
        raise ValueError(f"--seconds {arguments.seconds}: want 2 to 600")
    if not 0 <= arguments.loader_delay <= 10 or math.isnan(arguments.loader_delay):
        raise ValueError(f"--loader-delay {arguments.loader_delay}: want 0 to 10 seconds")
    slow = min(2, arguments.ranks - 1) if arguments.slow_rank is None else arguments.slow_rank
    if slow == "none":
        slow = None
    elif not str(slow).isdigit() or int(slow) >= arguments.ranks:
        raise ValueError(f'--slow-rank {slow}: want a rank from 0 to {arguments.ranks - 1}, or "none"')
    kill = arguments.kill_at
    if kill == "none":
        kill = None
    elif kill != "auto":
        if not kill.isdigit():
            raise ValueError(f'--kill-at {kill}: want a step from 0, or "none"')
        kill = int(kill)
    return Options(
        ranks=arguments.ranks,
        seconds=arguments.seconds,
        slow_rank=None if slow is None else int(slow),
        loader_delay_seconds=arguments.loader_delay,
        kill_at=kill,
        keep=arguments.keep,
    )


def _print(outcome, arguments) -> None:
    from goodput.account.text import render, wrap

    found = json.dumps({"planted": outcome.planted, "account": outcome.account}, indent=2)
    if arguments.json == "-":
        print(found)
    else:
        print(render(outcome.account))
        print(f"\n{wrap(_planted_line(outcome.planted))}")
    if arguments.json not in (None, "-"):
        with open(arguments.json, "w") as file:
            file.write(found + "\n")
        print(f"  written to {arguments.json}")
    if outcome.address:
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
