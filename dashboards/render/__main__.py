"""Takes pictures of boards: `python -m dashboards.render BOARD.json ... --prometheus URL --out DIRECTORY`.

In: generated boards, a Prometheus to ask, a time range and variables. Out: one PNG per board (or per panel with
--panel). Exit status 0, 1 when a picture could not be taken, 2 for a wrong call. What was asked is kept beside
the pictures with --keep.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dashboards.render.document import WIDTH_PIXELS, document_of
from dashboards.render.queries import Range, milliseconds

HERE = Path(__file__).resolve().parent
SHOOT_SECONDS_MAX = 120


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        range_ = range_of(options.start, options.end, time.time())
        chosen = chosen_of(options.variable)
        documents = {
            path: document_of(
                json.loads(path.read_text()),
                options.prometheus,
                range_,
                {name: values for name, values in chosen.items() if name in _names(path)},
                theme=options.theme,
                width=options.width,
            )
            for path in options.boards
        }
    except (OSError, ValueError) as problem:
        print(f"goodput render: {problem}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    return max(_picture(path, document, options) for path, document in documents.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dashboards.render", description=__doc__.split("\n")[0])
    parser.add_argument("boards", nargs="+", type=Path, metavar="BOARD.json")
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--from", dest="start", default="now-1h", help="now-1h, or seconds since the epoch")
    parser.add_argument("--to", dest="end", default="now")
    parser.add_argument(
        "--variable", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument("--width", type=int, default=WIDTH_PIXELS, help="pixels (default: %(default)s)")
    parser.add_argument("--panel", type=int, action="append", default=[], metavar="ID")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="DIRECTORY")
    parser.add_argument(
        "--keep", action="store_true", help="keep what the page was given, as BOARD.document.json"
    )
    parser.add_argument(
        "--no-picture", action="store_true", help="only ask; with --keep for a look at the answers"
    )
    return parser


def _names(path: Path) -> set[str]:
    return {one["name"] for one in json.loads(path.read_text()).get("templating", {}).get("list", [])}


def chosen_of(pairs: list[str]) -> dict[str, list[str]]:
    """name=value pairs as a dictionary; a name that comes again has several values."""
    chosen: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--variable takes NAME=VALUE, not {pair!r}")
        chosen.setdefault(name, []).append(value)
    return chosen


def range_of(start: str, end: str, now_seconds: float) -> Range:
    """now, now-15m or seconds since the epoch, each; the range must not be empty."""

    def moment(text: str) -> int:
        if text == "now":
            return round(now_seconds * 1000)
        if text.startswith("now-"):
            return round(now_seconds * 1000) - milliseconds(text.removeprefix("now-"))
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return round(float(text) * 1000)
        raise ValueError(f"{text!r} is neither now, now-15m nor seconds since the epoch")

    found = Range(moment(start), moment(end))
    if found.milliseconds <= 0:
        raise ValueError(f"the time range from {start} to {end} is empty")
    return found


def _picture(path: Path, document: dict, options: argparse.Namespace) -> int:
    errors = [
        answer["error"] for answers in document["answers"].values() for answer in answers if answer["error"]
    ]
    for error in errors:
        print(f"{path.name}: {error}", file=sys.stderr)
    if options.keep:
        (options.out / f"{path.stem}.document.json").write_text(json.dumps(document, indent=1))
    if options.no_picture:
        return 1 if errors else 0
    target = options.out / f"{path.stem}.png"
    return 1 if shoot(document, target, options.panel) or errors else 0


def shoot(document: dict, target: Path, panels: list[int]) -> int:
    """Draw a document into a PNG; the exit status of shoot.mjs, which says on stderr what is wrong."""
    if not (HERE / "dist" / "main.js").exists() or not (HERE / "node_modules").exists():
        print(f"the page is not built: run `npm ci && npm run build` in {HERE.name}/ first", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "document.json"
        file.write_text(json.dumps(document))
        command = ["node", str(HERE / "shoot.mjs"), str(file), str(target), *map(str, panels)]
        return subprocess.run(command, timeout=SHOOT_SECONDS_MAX).returncode


if __name__ == "__main__":
    sys.exit(main())
