"""The knee from recorded batches as text of 80 columns."""

from __future__ import annotations

import textwrap

from goodput.account.text import COLUMNS, digits, wrap


def render(found: dict) -> str:
    """A line for each record, the limit, and what to use."""
    size = f"batches of {found['batch_size']}, " if found["batch_size"] else ""
    count = sum(one["batches"] for one in found["records"])
    lines = [
        f"{size}{count:,} recorded",
        "",
        f"{'workers':>9}{'busy':>8}{'batches/s':>12}    ms of a batch: a worker's, waited for",
    ]
    for one in found["records"]:
        name, spent = _largest(one)
        own, spent, waited = (digits(1e3 * seconds) for seconds in (one["seconds"], spent, one["wait"]))
        parts = f"{own} ({name} {spent}), {waited}"
        lines.append(f"{one['workers']:>9}{one['busy']:>8.1f}{_rate(one):>12}    {parts}")
        # A name may be longer than a line.
        run = f"rank {one['rank']} of {one['run']}, attempt {one['attempt']}"
        lines += textwrap.wrap(run, COLUMNS, initial_indent=" " * 10, subsequent_indent=" " * 12)
    limit = found["limit"]
    lines += ["", wrap(f"limit: {limit['name']}; {limit['text']}.", 2), "", wrap(_use(found), 2)]
    if found["left_out"]:
        lines.append(f"{found['left_out']} more with batches of another size are left out")
    return "\n".join(line.rstrip() for line in lines)


def _largest(one: dict) -> tuple[str, float]:
    """Where most of a worker's time for a batch goes, and how much of it."""
    parts, locked = dict(one["parts"]), one["lock_share"]
    if locked is not None:
        blocked = parts.pop("blocked")
        parts |= {"storage": blocked * (1 - locked), "lock": blocked * locked}
    name = max(parts, key=parts.__getitem__)
    return name, parts[name]


def _rate(one: dict) -> str:
    """What the workers made; without workers the training's own time counts too, where it is known."""
    if not one["workers"]:
        return "" if one["besides"] is None else digits(1 / (one["seconds"] + one["besides"]))
    return digits(one["busy"] / one["seconds"])


def _use(found: dict) -> str:
    if found["knee"] is not None:
        return f"use: num_workers={found['knee']}"
    if found["keep_up"] is None:
        return "use: unknown"
    return f"use: unknown; num_workers={found['keep_up']} would keep up with the training if workers do not slow each other down"
