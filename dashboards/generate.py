"""Write every board to dashboards/generated/<uid>.json, or check that these files are current.

A board is a module of this package that has a `BOARD`. Its file has Grafana's classic dashboard model with sorted keys,
so that the same code gives the same bytes. Its panels are numbered in their order, and its collapsed rows after them, so
that a new row changes no number.

    python -m dashboards.generate            # write
    python -m dashboards.generate --check    # exit 1 and name the files that differ
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from pathlib import Path

from dashboards.clusters import in_cluster, query_in_cluster
from dashboards.rows import collapsed_rows, panels_of

GENERATED = Path(__file__).parent / "generated"


def boards() -> dict[str, str]:
    """File name and JSON text of every board."""
    texts = {}
    for module in sorted(pkgutil.iter_modules([str(Path(__file__).parent)])):
        board = getattr(importlib.import_module(f"dashboards.{module.name}"), "BOARD", None)
        if board:
            model = board.build()
            texts[f"{model.uid}.json"] = _text(model)
    return texts


def stale(directory: Path = GENERATED) -> list[str]:
    """Names of the files in the directory that are missing, different or without a board."""
    want = boards()
    have = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.json")}
    return sorted(name for name in want.keys() | have.keys() if want.get(name) != have.get(name))


def write(directory: Path = GENERATED) -> list[str]:
    """Write every board, remove files without one, and return the names that changed."""
    changed, want = stale(directory), boards()
    directory.mkdir(parents=True, exist_ok=True)
    for name in changed:
        path = directory / name
        if name in want:
            path.write_text(want[name], encoding="utf-8")
        else:
            path.unlink()
    return changed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.generate", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    if parser.parse_args(arguments).check:
        names = stale()
        for name in names:
            print(
                f"dashboards/generated/{name} is not current; run: python -m dashboards.generate",
                file=sys.stderr,
            )
        return 1 if names else 0
    for name in write():
        print(f"dashboards/generated/{name}")
    return 0


def _text(model) -> str:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    board = json.loads(json.dumps(model, cls=JSONEncoder))
    for number, panel in enumerate([*panels_of(board), *collapsed_rows(board)], 1):
        panel["id"] = number
    for table in (one for one in panels_of(board) if one["type"] == "table"):
        # Grafana 12.2 and later read it beside the footer.
        table["options"]["enablePagination"] = table["options"]["footer"].get("enablePagination", False)
    for target in (target for panel in panels_of(board) for target in panel["targets"]):
        target["expr"] = in_cluster(target["expr"])
    for mark in (one for one in board["annotations"].get("list", []) if one.get("expr")):
        mark["expr"] = in_cluster(mark["expr"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query" and variable["name"] != "cluster":
            variable["definition"] = variable["query"]["query"] = query_in_cluster(variable["definition"])
    return json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
