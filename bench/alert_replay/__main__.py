"""`python -m bench.alert_replay`: replay both scenarios through the alerts and write docs/detection.md.

    python -m bench.alert_replay [--gpus N] [--base S] [--fine S] [--near S] [--planted S] [--only SCENARIO] [--out FILE] [--json]

Exit status 1 if a page fired in the innocent scenario or a planted fault was detected late, 2 for wrong arguments.
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
from bench.alert_replay.planted import PlantedFault, planted
from bench.alert_replay.replay import Progress, Replay, replay
from bench.alert_replay.rules import Rule, load
from bench.alert_replay.table import length, page
from bench.alert_replay.verdict import Detection, detections, uncovered, unexplained

OUT = Path(__file__).parents[2] / "docs" / "detection.md"
_EXAMPLE = "example: python -m bench.alert_replay --gpus 2 --base 120 --fine 30 --out /dev/null"


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser("bench.alert_replay", description=__doc__.split("\n")[0], epilog=_EXAMPLE)
    add, near = it.add_argument, innocents.NEAR_SECONDS
    add("--gpus", type=int, default=8, help="GPUs on each of the six innocent nodes (default: 8)")
    add("--large", type=int, help="how many of them the large run uses on each node (default: all)")
    add("--days", type=float, default=innocents.DAYS, help="innocent days (default: %(default)s)")
    add("--base", type=float, default=300, help="seconds between scrapes (default: %(default)s)")
    add("--fine", type=float, default=60, help="seconds between scrapes near events (default: %(default)s)")
    add(
        "--near", type=float, default=near, help="seconds after an event that are near (default: %(default)s)"
    )
    add("--planted", type=float, default=10, help="seconds between planted scrapes (default: %(default)s)")
    add("--only", choices=("innocent", "planted"), help="replay one scenario; the page is not written")
    add("--out", type=Path, default=OUT, help="where the page is written (default: docs/detection.md)")
    add("--json", action="store_true", help="print what fired as JSON")
    return it


def main() -> int:
    options, rules = parser().parse_args(), load()
    if options.gpus < 2:
        parser().error("argument --gpus: at least 2, since a run shrinks to half of them")
    replays: dict[str, Replay] = {}
    faults: list[PlantedFault] = []
    if options.only != "planted":
        timing = {"days": options.days, "base": options.base, "fine": options.fine, "near": options.near}
        scenario = innocents.innocent(options.gpus, options.large, **timing)
        replays["innocent"] = replay(scenario, rules, _progress("innocent"))
    if options.only != "innocent":
        scenario, faults = planted(options.planted)
        replays["planted"] = replay(scenario, rules, _progress("planted"))
    found = detections(faults, replays["planted"].firings) if faults else []
    if len(replays) == 2:
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        options.out.write_text(
            page(replays["innocent"], replays["planted"], found, rules, date=date, version=_version())
        )
    if options.json:
        print(json.dumps({name: [vars(one) for one in it.firings] for name, it in replays.items()}, indent=1))
    else:
        for name, it in replays.items():
            _print_replay(name, it)
        if found:
            _print_detections(found, faults, replays["planted"], rules)
    pages = replays["innocent"].pages() if "innocent" in replays else []
    return int(bool(pages) or any(one.late for one in found))


def _print_replay(name: str, it: Replay) -> None:
    took = ", ".join(f"{what} {length(seconds)}" for what, seconds in it.seconds.items())
    moments, samples = len(it.scenario.ticks.times), it.samples / 1e6
    print(f"\n{name}: {moments} moments, {samples:.1f} million samples, {it.queries} queries; {took}")
    if name == "innocent":
        print(f"  {len(it.pages())} pages, {len(it.firings)} alerts in all")
        for one in it.firings:
            print(f"  {_line(one)}")


def _print_detections(
    found: list[Detection], faults: list[PlantedFault], it: Replay, rules: list[Rule]
) -> None:
    for one in found:
        delay = "NOT DETECTED"
        if one.delay is not None:
            delay = f"{'LATE' if one.late else 'detected'} after {length(one.delay)}"
        bound = f"of {length(one.fault.within)}"
        print(f"  {one.fault.alert:<41}{delay:<30}{bound:<18}{one.fault.what}")
    for one in unexplained(faults, it.firings):
        print(f"  unexplained: {_line(one)}")
    for name in uncovered(rules, found):
        print(f"  no fault is planted for {name}")


def _line(one: Firing) -> str:
    hidden = ("alertname", "severity", "level", "job")
    where = " ".join(f"{name}={value}" for name, value in sorted(one.labels.items()) if name not in hidden)
    lasts = "to the end" if one.resolved == float("inf") else f"for {length(one.resolved - one.at)}"
    return f"{one.severity:<9}{one.alert:<30} on day {1 + one.at / 86_400:.3f} {lasts}: {where}"


def _progress(name: str) -> Progress:
    """A line that is rewritten in place on a terminal; nothing elsewhere."""
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
    done = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).split("(")[0].replace(", version", "").strip()


if __name__ == "__main__":
    sys.exit(main())
