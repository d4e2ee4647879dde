"""The built-in page as one HTML file with its scripts, styles and data inlined: no server, no network.

A Content-Security-Policy with the hashes of the inlined scripts and styles forbids everything else, requests included.
Data is JSON in a script element that is not executed, in which "<" is escaped; names are cleaned of what is not
printable, and the page only ever sets them as text.

    Path("account.html").write_text(render([document], command="goodput replay"), encoding="utf-8")
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import posixpath
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from goodput.web import FOLDER
from goodput.wire.identity import clean_text

# Bounds of a file; what is left out is counted on the page. 50 000 ranks are some 15 MB.
RUNS_MAX, RANKS_MAX, RESTARTS_MAX = 1000, 50_000, 10_000
LIST_LENGTH_MAX, TEXT_LENGTH_MAX = 1000, 2000
_IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const)) ([\w$]+)", re.MULTILINE)


def render(
    documents: Sequence[Mapping[str, Any]],
    *,
    command: str,
    log: dict | None = None,
    timelines: dict[str, dict] | None = None,
    stories: dict[str, dict] | None = None,
) -> str:
    """The page with these account documents.

    `log` is what was wrong with a run log (runlog.Problems.document()), `timelines` and `stories` are as the API has
    them, by run. Of more than RUNS_MAX runs those with most GPU time are kept, of more ranks those with the lowest goodput.
    """
    largest = sorted(documents, key=lambda document: -document["gpu_seconds"])[:RUNS_MAX]
    data = {
        "written": time.time(),
        "command": command,
        "runs": [_bounded(document, len(largest)) for document in largest],
        "runs_left_out": len(documents) - len(largest),
        "timelines": timelines or {},
        "stories": stories or {},
        "log": log,
    }
    theme = (FOLDER / "scripts/theme.js").read_text(encoding="utf-8")
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    main = bundle("main.js")
    policy = (
        f"default-src 'none'; script-src {_hash(theme)} {_hash(main)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = (FOLDER / "page.html").read_text(encoding="utf-8")
    charset = '<meta charset="utf-8">'
    for old, new in (
        (charset, f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        ('<link rel="stylesheet" href="page.css">', f"<style>{style}</style>"),
        ('<script src="scripts/theme.js"></script>', f"<script>{theme}</script>"),
        ('<script src="scripts/main.js" type="module"></script>\n', ""),
        ("</body>", f"{_inlined_json(data)}\n<script>{main}</script>\n</body>"),
    ):
        assert page.count(old) == 1, old
        page = page.replace(old, new)
    return page


def bundle(entry: str) -> str:
    """The module `entry` below scripts/ and what it imports as one script.

    Each module becomes a function scope of its own, after those that it imports. Understood are the forms that the
    scripts use: `import { a, b } from "./path.js";` and `export` before a function, class or const at a line's start.
    """
    sources: dict[str, str] = {}
    _add_module(entry, sources, ())
    return "".join(['"use strict";\nconst modules = {};\n', *sources.values()])


def _add_module(name: str, sources: dict[str, str], importers: tuple[str, ...]) -> None:
    if name in sources:
        return
    if name in importers:
        raise ValueError(f"{name} imports itself by way of {' and '.join(importers)}")
    text = (FOLDER / "scripts" / name).read_text(encoding="utf-8")

    def imported(match: re.Match) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2]))
        _add_module(path, sources, (*importers, name))
        return f"const {{{match[1]}}} = modules[{json.dumps(path)}];\n"

    text = _IMPORT.sub(imported, text)
    exports = ", ".join(name for _, name in _EXPORT.findall(text))
    text = _EXPORT.sub(r"\1 \2", text)
    if re.search(r"^(import|export)\b", text, re.MULTILINE) or "</script" in text:
        raise ValueError(f"{name} has an import or export that cannot be bundled")
    sources[name] = f"(() => {{\n{text}modules[{json.dumps(name)}] = {{ {exports} }};\n}})();\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inlined_json(data: dict) -> str:
    # Without "<" no text can end the element or begin a comment in it.
    text = json.dumps(printable(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="data">{text}</script>'


def _bounded(document: Mapping[str, Any], runs: int) -> dict:
    """The document with the worst ranks and the costliest restarts, without states of no time."""
    ranks = sorted(document["ranks"], key=_goodput)[: max(RANKS_MAX // runs, 1)]
    restarts = sorted(document["restarts"], key=lambda restart: -restart["gpu_seconds"])
    restarts = restarts[: max(RESTARTS_MAX // runs, 1)]
    return {
        **document,
        "ranks": [
            rank | {"states": {state: seconds for state, seconds in rank["states"].items() if seconds}}
            for rank in sorted(ranks, key=lambda rank: rank["rank"])
        ],
        "restarts": sorted(restarts, key=lambda restart: restart["attempt"]),
        "left_out": {
            "ranks": len(document["ranks"]) - len(ranks),
            "restarts": len(document["restarts"]) - len(restarts),
        },
    }


def _goodput(rank: dict) -> tuple:
    total = sum(rank["states"].values())
    return rank["states"]["productive"] / total if total else 0.0, rank["rank"]


def printable(value, key: str = ""):
    """Printable texts and lists of bounded length, finite numbers. Ranks, restarts and runs are bounded before."""
    if isinstance(value, str):
        return clean_text(value, TEXT_LENGTH_MAX)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {clean_text(name, TEXT_LENGTH_MAX): printable(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        bounded = value if key in ("ranks", "restarts", "runs") else value[:LIST_LENGTH_MAX]
        return [printable(inner) for inner in bounded]
    return value
