"""Draw goodput's boards from the data of a Prometheus into PNG files.

    python -m dashboards.render dashboards/generated/goodput-run.json --prometheus http://127.0.0.1:9090 \\
        --variable run=r1 --out pictures

Exit status 0, 1 when a query or a picture failed, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dashboards.render.document import WIDTH_PIXELS, document_of
from dashboards.render.queries import Range, milliseconds

HERE = Path(__file__).resolve().parent
SHOOT_SECONDS_MAX = 120
BROWSERS = ("chromium-headless-shell", "chromium")  # Debian's


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        range_ = range_of(options.start, options.end, time.time())
        chosen = chosen_of(options.variable)
        documents = {path: _document(path, options, range_, chosen) for path in options.boards}
    except (OSError, ValueError) as problem:
        print(f"goodput render: {problem}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for path, document in documents.items():
        if options.keep:
            (options.out / f"{path.stem}.document.json").write_text(json.dumps(document, indent=1))
        target = None if options.no_picture else options.out / f"{path.stem}.png"
        status |= draw(path.name, document, target, options.panel)
    return status


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
        "--keep", action="store_true", help="also write BOARD.document.json, the page's input"
    )
    parser.add_argument("--no-picture", action="store_true", help="only run the queries")
    return parser


def _document(path: Path, options: argparse.Namespace, range_: Range, chosen: dict[str, list[str]]) -> dict:
    """The document of a board; variables that another board has are left out."""
    board = json.loads(path.read_text())
    names = {one["name"] for one in board.get("templating", {}).get("list", [])}
    own = {name: values for name, values in chosen.items() if name in names}
    return document_of(board, options.prometheus, range_, own, theme=options.theme, width=options.width)


def chosen_of(pairs: list[str]) -> dict[str, list[str]]:
    """name=value pairs as a dictionary; a repeated name has several values."""
    chosen: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--variable takes NAME=VALUE, not {pair!r}")
        chosen.setdefault(name, []).append(value)
    return chosen


def range_of(start: str, end: str, now_seconds: float) -> Range:
    """The range between two of: now, now-15m, seconds since the epoch; it must not be empty."""

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


def draw(name: str, document: dict, target: Path | None, panels: list[int]) -> int:
    """Print the errors of a document's queries, and draw it into a PNG if there is a target; 1 if anything failed."""
    errors = [answer["error"] for answers in document["answers"].values() for answer in answers]
    errors = [error for error in errors if error]
    for error in errors:
        print(f"{name}: {error}", file=sys.stderr)
    if target is None:
        return 1 if errors else 0
    if not (HERE / "dist" / "main.js").exists() or not (HERE / "node_modules").exists():
        print(f"the page is not built: run `npm ci && npm run build` in {HERE.name}/ first", file=sys.stderr)
        return 1
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"no browser on PATH: install one of {', '.join(BROWSERS)}, or set CHROMIUM", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "document.json"
        file.write_text(json.dumps(document))
        command = ["node", str(HERE / "shoot.mjs"), str(file), str(target), *map(str, panels)]
        environ = {**os.environ, "CHROMIUM": browser}
        failed = subprocess.run(command, timeout=SHOOT_SECONDS_MAX, env=environ).returncode
    return 1 if failed or errors else 0


if __name__ == "__main__":
    sys.exit(main())
