"""`python -m bench.alert_replay`: both worlds through the alerts, and docs/detection.md.

    python -m bench.alert_replay [--gpus N] [--base S] [--fine S] [--near S] [--planted S] [--only WORLD] [--out FILE] [--json]

Exit status 1 when a page fired in the innocent world, or a planted fault was not told in time; 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

from bench.alert_replay import innocent as innocents
from bench.alert_replay.evaluate import Firing
from bench.alert_replay.planted import Fault, planted
from bench.alert_replay.replay import Progress, Replay, replay
from bench.alert_replay.rules import Rule, load
from bench.alert_replay.table import length, page
from bench.alert_replay.verdict import strays, told, uncovered

OUT = Path(__file__).parents[2] / "docs" / "detection.md"
_EXAMPLE = "example: python -m bench.alert_replay --gpus 2 --base 120 --fine 30 --out /dev/null"


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser("bench.alert_replay", description=__doc__.split("\n")[0], epilog=_EXAMPLE)
    it.add_argument("--gpus", type=int, default=8, help="GPUs on each of the six innocent nodes (default: 8)")
    it.add_argument("--large", type=int, help="how many of them the large run uses on each (default: all)")
    it.add_argument("--days", type=float, default=innocents.DAYS, help="innocent days (default: %(default)s)")
    it.add_argument("--base", type=float, default=60, help="seconds between scrapes (default: %(default)s)")
    it.add_argument("--fine", type=float, default=15, help="and near events (default: %(default)s)")
    near = innocents.NEAR_SECONDS
    it.add_argument("--near", type=float, default=near, help="for so long after one (default: %(default)s)")
    it.add_argument(
        "--planted", type=float, default=10, help="and in the planted world (default: %(default)s)"
    )
    it.add_argument(
        "--only", choices=("innocent", "planted"), help="one of the two worlds; no page is written"
    )
    it.add_argument("--out", type=Path, default=OUT, help="where the page goes (default: docs/detection.md)")
    it.add_argument("--json", action="store_true", help="print what fired as JSON")
    return it


def main() -> int:
    asked, rules = parser().parse_args(), load()
    replays: dict[str, Replay] = {}
    faults: list[Fault] = []
    if asked.only != "planted":
        given = {"days": asked.days, "base": asked.base, "fine": asked.fine, "near": asked.near}
        world = innocents.innocent(asked.gpus, asked.large, **given)
        replays["innocent"] = replay(world, rules, _progress("innocent"))
    if asked.only != "innocent":
        world, faults = planted(asked.planted)
        replays["planted"] = replay(world, rules, _progress("planted"))
    found = told(faults, replays["planted"].firings) if faults else []
    if len(replays) == 2:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        asked.out.write_text(page(*replays.values(), found, rules, date=stamp, version=_version()))
    if asked.json:
        print(json.dumps({name: [vars(one) for one in it.firings] for name, it in replays.items()}, indent=1))
    else:
        _say(replays, faults, found, rules)
    pages = replays["innocent"].pages() if "innocent" in replays else []
    return int(bool(pages) or any(one.late for one in found))


def _say(replays: dict[str, Replay], faults: list[Fault], found, rules: list[Rule]) -> None:
    for name, it in replays.items():
        took = ", ".join(f"{what} {length(seconds)}" for what, seconds in it.seconds.items())
        moments = len(it.world.ticks.times)
        print(
            f"\n{name}: {moments} moments, {it.samples / 1e6:.1f} million samples, {it.queries} queries; {took}"
        )
        if name == "innocent":
            print(f"  {len(it.pages())} pages, {len(it.firings)} alerts in all")
            for one in it.firings:
                print(f"  {_line(one)}")
    for one in found:
        delay = (
            "NOT SEEN" if one.delay is None else f"{'LATE' if one.late else 'seen'} after {length(one.delay)}"
        )
        bound = f"of {length(one.fault.within)}"
        print(f"  {one.fault.alert:<32}{delay:<26}{bound:<18}{one.fault.what}")
    if found:
        for one in strays(faults, replays["planted"].firings):
            print(f"  unexplained: {_line(one)}")
        for name in uncovered(rules, faults):
            print(f"  no fault is planted for {name}")


def _line(one: Firing) -> str:
    hidden = ("alertname", "severity", "level", "job")
    where = " ".join(f"{name}={value}" for name, value in sorted(one.labels.items()) if name not in hidden)
    lasts = "to the end" if one.resolved == float("inf") else f"for {length(one.resolved - one.at)}"
    return f"{one.severity:<9}{one.alert:<30} on day {1 + one.at / 86_400:.3f} {lasts}: {where}"


def _progress(name: str) -> Progress:
    """A line that is written anew on a terminal, nothing elsewhere."""
    last = 0.0

    def show(what: str, part: float) -> None:
        nonlocal last
        if sys.stderr.isatty() and (part >= 1 or time.monotonic() - last > 0.2):
            last = time.monotonic()
            print(
                f"\r{name}: {what} {part:5.1%} ", end="\n" if part >= 1 else "", file=sys.stderr, flush=True
            )

    return show


def _version() -> str:
    said = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=False)
    return (said.stdout or said.stderr).split("(")[0].replace(", version", "").strip()


if __name__ == "__main__":
    sys.exit(main())
