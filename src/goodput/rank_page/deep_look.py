"""What the last deep look of a rank has found: one small file beside its page, and its text.

In: the document of goodput.trace, reduced by `seen_of` in the trainer; or a file, treated as hostile. Out: a dict, the
file `<page>.look.json`, lines for people. The six states of the traced step sum to its wall time exactly, or the file
is refused. A file has BYTES_MAX at most and is replaced as a whole. It does not know how a step is traced
(sdk/deep_look.py) or cut into states (trace/).

    {"version": 1, "run", "rank", "attempt", "unix_ns": of writing, "looks", "skipped", "failed", "why": last failure,
     "cost_ns": of all looks, "every_ns": between two of them,
     "seen": null or {"unix_ns", "step", "device", "wall_ns", "states_ns": {...}, "communication_ns",
              "communication_hidden_ns", "copy_ns", "copy_hidden_ns", "kernel_ns", "gaps", "late_gaps", "late_gaps_ns",
              "top": [{"name", "kind", "count", "ns"}], "cause": null or {"state", "gain", "advice"},
              "cost_ns": of this look, "slowdown_ns": of the traced step, "analysis_ns": CPU time of the child process}}
"""

from __future__ import annotations

import json
import os
import stat
import textwrap
from time import monotonic_ns

from goodput.rank_page import page

SUFFIX = ".look.json"
BYTES_MAX = 64 << 10
STATES = ("compute", "communication", "copy", "loader", "host", "idle")  # as trace.STATES
TOP_MAX, NAME_CHARACTERS_MAX, ADVICE_CHARACTERS_MAX = 5, 120, 600
COLUMNS = 100
_COUNTS = ("looks", "skipped", "failed", "cost_ns", "every_ns", "unix_ns", "rank", "attempt")
_TIMES = ("communication_ns", "communication_hidden_ns", "copy_ns", "copy_hidden_ns", "kernel_ns")
_SEEN = (*("unix_ns", "step", "wall_ns", "gaps", "late_gaps", "late_gaps_ns"), *_TIMES)
_COSTS = ("cost_ns", "slowdown_ns", "analysis_ns")


class LookError(Exception):
    """A file that is no deep look; the text says what and where."""


def seen_of(document: dict) -> dict:
    """What is kept of a document of goodput.trace. Raises ValueError where it has no step or says what is wrong."""
    if document["errors"]:
        raise ValueError(str(document["errors"][0]))
    devices = [device for rank in document["ranks"] for device in rank["devices"]]
    total, cause, gaps = document["total"], document["cause"], [device["gaps"] for device in devices]
    if not devices or not all(len(device["steps"]) == 1 for device in devices):
        raise ValueError("the trace does not hold one step")
    return {
        "device": devices[0]["model"] or devices[0]["device"],
        **{name: total[name] for name in ("wall_ns", *_TIMES)},
        "states_ns": {state: total["states_ns"][state] for state in STATES},
        "gaps": sum(one["count"] for one in gaps),
        "late_gaps": sum(one["late_count"] for one in gaps),
        "late_gaps_ns": sum(one["late_ns"] for one in gaps),
        "top": [row for device in devices for row in device["top"]],
        "cause": cause,
    }


# -- the file


def path_of(page_path: str) -> str:
    return page_path + SUFFIX


def write(page_path: str, look: dict) -> None:
    """Replace the file beside this page. Raises OSError."""
    directory, name = os.path.split(page_path)
    # Such a name is that of a page's draft, which the agent sweeps if its process dies here.
    draft = os.path.join(directory, f".{os.getpid()}.{monotonic_ns():x}.look.{name}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(fd, "wb") as file:
            file.write(json.dumps(look, separators=(",", ":"), allow_nan=False).encode())
        os.replace(draft, path_of(page_path))
    except BaseException:
        try:
            os.unlink(draft)
        except OSError:
            pass
        raise


def read(page_path: str, owner: int | None = None) -> dict | None:
    """The look beside this page, None where there is none. Raises LookError.

    Anybody may write where pages lie, so with `owner` the file must be that user's.
    """
    path = path_of(page_path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LookError(f"{path}: {error.strerror}") from None
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > BYTES_MAX:
            raise LookError(f"{path}: no file of at most {BYTES_MAX} bytes")
        if owner is not None and found.st_uid != owner:
            raise LookError(f"{path}: of another user than the page")
        raw = file.read(BYTES_MAX + 1)
    try:
        return checked(json.loads(raw))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LookError(f"{path}: {type(error).__name__}: {str(error)[:200]}") from None


def looks_in(directory: str) -> tuple[list[dict], list[str]]:
    """The looks beside the pages of a directory, the newest attempt of each rank, and texts of what is wrong."""
    newest: dict[tuple[str, int], dict] = {}
    errors = []
    for name in sorted(os.listdir(directory)):
        if not name.endswith(page.SUFFIX + SUFFIX) or name.startswith("."):
            continue
        path = os.path.join(directory, name.removesuffix(SUFFIX))
        try:
            look = read(path, os.stat(path).st_uid)
        except LookError as error:
            errors.append(str(error))
            continue
        except OSError:
            continue  # The page is gone.
        if look is not None:
            key = look["run"], look["rank"]
            if key not in newest or newest[key]["attempt"] <= look["attempt"]:
                newest[key] = look
    return [newest[key] for key in sorted(newest)], errors


# -- checks


def checked(look) -> dict:
    """A look with what belongs in one and no more. Raises ValueError, KeyError or TypeError."""
    if not isinstance(look, dict) or look["version"] != 1:
        raise ValueError("not version 1 of a deep look")
    seen = look["seen"]
    return {
        "version": 1,
        "run": _text(look["run"], 128),
        **{name: _count(look[name], name) for name in _COUNTS},
        "why": _text(look["why"], ADVICE_CHARACTERS_MAX),
        "seen": None if seen is None else checked_seen(seen),
    }


def checked_seen(seen: dict) -> dict:
    states = {state: _count(seen["states_ns"][state], state) for state in STATES}
    cause = seen["cause"]
    if sum(states.values()) != seen["wall_ns"]:
        raise ValueError(f"states of {sum(states.values())} ns in a step of {seen['wall_ns']} ns")
    return {
        **{name: _count(seen[name], name) for name in (*_SEEN, *_COSTS)},
        "device": _text(seen["device"], NAME_CHARACTERS_MAX),
        "states_ns": states,
        "top": [_row(row) for row in seen["top"][:TOP_MAX]],
        "cause": None if cause is None else _cause(cause),
    }


def _row(row: dict) -> dict:
    return {
        **{name: _text(row[name], NAME_CHARACTERS_MAX) for name in ("name", "kind")},
        **{name: _count(row[name], name) for name in ("count", "ns")},
    }


def _cause(cause: dict) -> dict:
    gain = cause["gain"]
    if cause["state"] not in STATES or not (gain is None or 1 <= gain < 1e18):
        raise ValueError("an impossible cause")
    advice = _text(cause["advice"], ADVICE_CHARACTERS_MAX)
    return {"state": cause["state"], "gain": gain, "advice": advice}


def _count(value, name: str) -> int:
    if type(value) is not int or not 0 <= value < page.NS_MAX:
        raise ValueError(f"{name} is no count")
    return value


def _text(value, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return "".join(c if c.isprintable() else "?" for c in value[:most])


# -- text


def lines(look: dict, now_unix_ns: int) -> list[str]:
    """A look for people, at most COLUMNS wide."""
    seen, wrap = look["seen"], _wrap
    said = [] if seen is None else [wrap(line) for line in _seen_lines(look, seen, now_unix_ns)]
    others = ", ".join(f"{look[name]} {name}" for name in ("skipped", "failed") if look[name])
    count = look["looks"]
    said.append(
        wrap(
            f"  {count} deep look{'s' * (count != 1)} cost {duration(look['cost_ns'])} in all, at most one each "
            f"{duration(look['every_ns'])}{f' ({others})' if others else ''}"
            + (f"; last failure: {look['why']}" if look["why"] else "")
        )
    )
    return said


def _seen_lines(look: dict, seen: dict, now_unix_ns: int) -> list[str]:
    wall, cause = seen["wall_ns"] or 1, seen["cause"]
    parts = [f"{state} {100 * ns / wall:.1f} %" for state, ns in seen["states_ns"].items() if ns]
    age = max(now_unix_ns - seen["unix_ns"], 0)
    out = [
        f"  deep look of rank {look['rank']} at step {seen['step']}, {duration(age)} ago: {duration(seen['wall_ns'])} "
        f"({duration(seen['slowdown_ns'])} of it by being traced): {', '.join(parts)}"
    ]
    for name, what in (("communication", "communication"), ("copy", "copies")):
        if seen[f"{name}_ns"]:
            share = 100 * seen[f"{name}_hidden_ns"] / seen[f"{name}_ns"]
            out.append(f"    {what} {duration(seen[f'{name}_ns'])}, {share:.0f} % hidden by computing")
    top = [f"{row['name']} ({row['count']} times, {duration(row['ns'])})" for row in seen["top"][:3]]
    if top:
        out.append(f"    longest: {', '.join(top)}")
    if cause is not None:
        out.append(f"    largest cause: {cause['state']}. {cause['advice']}")
    return out


def duration(ns: float) -> str:
    """A length of time in two or three digits."""
    for size, unit in ((3600e9, "h"), (120e9, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= size:
            return f"{ns / (60e9 if unit == 'min' else size):.3g} {unit}"
    return f"{ns:.0f} ns"


def _wrap(line: str) -> str:
    """Over several lines, but never between a number and its percent sign."""
    bound = line.replace(" %", "\u00a0%")
    settings = {"subsequent_indent": "      ", "break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(bound, COLUMNS, **settings).replace("\u00a0%", " %")
