"""The page of `goodput replay --html`: accounts as one file that a browser shows without a network.

In: account documents, each with `log` where it came from one. Out: a page of HTML with its style and pictures
inside, no script, and a policy that forbids to load anything. Every text from outside is escaped, every unknown
value reads "unknown". Size is bounded: RUNS_SHOWN runs in full, of each the ranks with the lowest goodput
and so on, and the page says what it leaves out; below 2 MB in all. It does not know files or clocks: the
same documents give the same page.

Files: headline.py (figures, the chain, the leading cause), spent.py (where the time went: states, ranks),
trouble.py (causes, restarts, slow ranks), rates.py (throughput, checkpoints, pipeline, money), log.py (what was
wrong with the log), pictures.py (SVG), numbers.py (digits and units), nodes.py (escaped elements), page.css.

    Path("account.html").write_text(page([document]), encoding="utf-8")
"""

from __future__ import annotations

from pathlib import Path

from goodput.report_page import headline, log, rates, spent, trouble
from goodput.report_page.nodes import Html, element, joined, muted, short, table
from goodput.report_page.numbers import count, dollars, duration, percent
from goodput.report_page.pictures import defs

RUNS_SHOWN, RUNS_LISTED = 8, 300
# Of one run, and of all runs together.
RANKS_SHOWN, RANKS_SHOWN_TOGETHER = 64, 256
RESTARTS_SHOWN, RESTARTS_SHOWN_TOGETHER = 50, 200
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(documents: list[dict]) -> str:
    """The whole page."""
    shown = _shown(documents)
    title = (
        f"goodput: {short(documents[0]['run'])}" if len(documents) == 1 else f"goodput: {len(documents)} runs"
    )
    body = [
        defs(),
        element("header", element("p", "goodput", class_="brand"), class_="top"),
        element(
            "main",
            _overview(documents, shown) if len(documents) != 1 else None,
            [_run(documents[i], f"run{i + 1}", len(documents) == 1, len(shown)) for i in shown],
            log.section(documents),
        ),
    ]
    return f"<!doctype html>\n{element('html', _head(title), element('body', body), lang='en')}\n"


def _head(title: str) -> Html:
    sheet = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(sheet)),
    )


def _shown(documents: list[dict]) -> list[int]:
    """The places of the runs to show in full: those with most GPU time, in the order given."""
    largest = sorted(range(len(documents)), key=lambda i: -documents[i]["gpu_seconds"])
    return sorted(largest[:RUNS_SHOWN])


def _overview(documents: list[dict], shown: list[int]) -> Html:
    rows = []
    for i, found in enumerate(documents[:RUNS_LISTED]):
        name = short(found["run"]) or "(no name)"
        rows.append(
            [
                element("a", name, href=f"#run{i + 1}") if i in shown else name,
                short(found["status"]),
                percent(found["factors"]["goodput"]),
                percent(found["factors"]["mfu"]),
                short(found["causes"][0]["state"]) if found["causes"] else "none",
                count(found["world_size"]),
                count(len(found["restarts"])),
                duration(found["end"] - found["start"]),
                dollars(found["cost"] and found["cost"]["total"]),
            ]
        )
    heads = [
        "Run",
        "Status",
        ">Goodput",
        ">MFU",
        "Leading cause",
        ">Ranks",
        ">Restarts",
        ">Duration",
        ">Cost",
    ]
    left_out = [
        f"{len(shown)} of {count(len(documents))} runs are shown in full below: those with most GPU time."
        if len(shown) < len(documents)
        else None,
        f"The first {RUNS_LISTED} runs are listed." if len(documents) > RUNS_LISTED else None,
    ]
    return element(
        "section",
        element("h1", f"{count(len(documents))} runs"),
        [muted(text) for text in left_out if text],
        element("div", table(heads, rows, label="All runs"), class_="card"),
    )


def _run(found: dict, key: str, alone: bool, runs: int) -> Html:
    """One of `runs` runs that are shown in full."""
    parts = [
        headline.head(found, key, "h1" if alone else "h2"),
        headline.errors(found),
        headline.figures(found),
        headline.known(found),
        headline.chain_and_cause(found, key),
        spent.states(found, key),
        trouble.causes(found, key),
        trouble.restarts(found, key, min(RESTARTS_SHOWN, RESTARTS_SHOWN_TOGETHER // runs)),
        trouble.slow_ranks(found, key),
        rates.section(found, key),
        spent.ranks(found, key, min(RANKS_SHOWN, RANKS_SHOWN_TOGETHER // runs)),
    ]
    return element("article", joined(parts), id=key, aria_labelledby=f"{key}-name")
