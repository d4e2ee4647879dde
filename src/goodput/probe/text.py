"""A probe of a node as text of 80 columns."""

from __future__ import annotations

import statistics

from goodput.account.text import THREE_DIGITS_FROM, digits, wrap
from goodput.probe.peers import Slower

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def render(document: dict, peers: list[dict] | None = None) -> str:
    """The figures, each with its spread, its share of the data sheet's and of the median of the peers."""
    gpus = document["gpus"]
    accelerators = f"{gpus} GPU{'s'[gpus == 1 :]}" if gpus else "no GPU"
    lines = [f"{document['host']}: {document['cores']} cores, {accelerators}"]
    if any(figure["name"].startswith("storage") for figure in document["figures"]):
        lines.append(wrap(f"storage at {document['path']}", 2))
    sheet = "of the sheet" if any(figure.get("nominal") for figure in document["figures"]) else ""
    last = "  of peers" if peers else ""
    lines += ["", f"  {'figure':<26}{'rate':>14}{'spread':>8}{sheet:>14}{last}"]
    notes: list[str] = []
    for figure in document["figures"]:
        note = ""
        if figure.get("note") and figure["value"]:
            if figure["note"] not in notes:
                notes.append(figure["note"])
            note = f"  [{notes.index(figure['note']) + 1}]"
        lines.append(_row(figure, peers, document["host"]) + note)
    lines += [f"  [{number}] {note}" for number, note in enumerate(notes, 1)]
    lines += [wrap(f"not measured: {problem}", 2) for problem in document["problems"]]
    return "\n".join(line.rstrip() for line in lines)


def _row(figure: dict, peers: list[dict] | None, host: str) -> str:
    value = figure["value"]
    name = figure["name"] if figure.get("index") is None else f"{figure['name']} [{figure['index']}]"
    rate = unit(value, figure["unit"]) if value else "unknown"
    spread = "" if figure.get("spread") is None else f"{figure['spread']:.0%}"
    share = f"{value / figure['nominal']:.0%}" if value and figure.get("nominal") else ""
    row = f"  {name:<26}{rate:>14}{spread:>8}{share:>14}"
    others = [
        other["value"]
        for peer in peers or ()
        if peer["host"] != host
        for other in peer["figures"]
        if other["value"] and (other["name"], other["device"]) == (figure["name"], figure["device"])
    ]
    return row + f"{value / statistics.median(others):>10.0%}" if value and others else row


def render_slower(found: list[Slower]) -> list[str]:
    """A line for each figure that is slower than the peers'."""
    return [
        f"{one.host}: {one.name}{'' if one.index is None else f' of GPU {one.index}'} is {one.ratio:.0%} "
        f"of the peers' median ({one.peers} figure{'s'[one.peers == 1 :]})"
        for one in found
    ]


def unit(value: float, name: str) -> str:
    """As "1.23 TFLOP/s"; a file a second is "12,345 /s"."""
    if name == "1/s":
        return f"{value:,.0f} /s"
    scale, prefix = next(
        ((scale, prefix) for scale, prefix in _PREFIXES if value >= THREE_DIGITS_FROM * scale), (1.0, "")
    )
    return f"{digits(value / scale)} {prefix}{name}"
