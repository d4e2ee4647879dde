"""The result of a rank's last deep look: one small file beside its page.

`result_of` reduces a document of goodput.trace in the trainer, `write` stores the file `<page>.look.json` and `read`
checks it, since any user may write where pages lie. LOOK is its format. The states of the traced step sum to its wall
time exactly, or the file is refused.
"""

from __future__ import annotations

import json
import os
import stat
from time import monotonic_ns
from typing import Any

from goodput.rank_page import page
from goodput.wire.identity import clean_text

SUFFIX = ".look.json"
BYTES_MAX = 64 << 10
STATES = ("compute", "communication", "copy", "loader", "host", "idle")  # as trace.STATES
TOP_MAX, NAME_CHARACTERS_MAX, ADVICE_CHARACTERS_MAX = 5, 120, 600
_TIMES = ("communication_ns", "communication_hidden_ns", "copy_ns", "copy_hidden_ns", "kernel_ns")
# Copies from host memory whose size the trace has; absent in files of earlier versions.
_TO_DEVICE = ("h2d_ns", "h2d_bytes")
_COUNTS = ("unix_ns", "step", "wall_ns", "gaps", "late_gaps", "late_gaps_ns")
# int: a count or nanoseconds. A number: that many characters of text. A list: at most TOP_MAX such entries.
RESULT = {
    **dict.fromkeys((*_COUNTS, *_TIMES, *_TO_DEVICE), int),
    # Of this look; of the traced step by being traced; CPU time of the analysis.
    **dict.fromkeys(("cost_ns", "slowdown_ns", "analysis_ns"), int),
    "device": NAME_CHARACTERS_MAX,
    "states_ns": dict.fromkeys(STATES, int),
    "top": [{"name": NAME_CHARACTERS_MAX, "kind": NAME_CHARACTERS_MAX, "count": int, "ns": int}],
}
LOOK = {
    "version": int,
    "run": 128,
    # `cost_ns` of all looks, `every_ns` between two of them, `unix_ns` of writing, `why` the last one failed.
    **dict.fromkeys(("looks", "skipped", "failed", "cost_ns", "every_ns", "unix_ns", "rank", "attempt"), int),
    "why": ADVICE_CHARACTERS_MAX,
}
CAUSE = {"state": NAME_CHARACTERS_MAX, "advice": ADVICE_CHARACTERS_MAX}


class LookError(Exception):
    """An invalid file; the text says what is wrong and where."""


def result_of(document: dict) -> dict:
    """What is kept of a document of goodput.trace. Raises ValueError if it has an error or not exactly one step."""
    if document["errors"]:
        raise ValueError(str(document["errors"][0]))
    devices = [device for rank in document["ranks"] for device in rank["devices"]]
    total, gaps = document["total"], [device["gaps"] for device in devices]
    if not devices or not all(len(device["steps"]) == 1 for device in devices):
        raise ValueError("the trace does not hold one step")
    return {
        "device": devices[0]["model"] or devices[0]["device"],
        **{name: total[name] for name in ("wall_ns", *_TIMES, *_TO_DEVICE)},
        "states_ns": {state: total["states_ns"][state] for state in STATES},
        "gaps": sum(one["count"] for one in gaps),
        "late_gaps": sum(one["late_count"] for one in gaps),
        "late_gaps_ns": sum(one["late_ns"] for one in gaps),
        "top": [row for device in devices for row in device["top"]],
        "cause": document["cause"],
    }


# -- the file


def path_of(page_path: str) -> str:
    return page_path + SUFFIX


def write(page_path: str, look: dict) -> None:
    """Replace the file beside this page. Raises OSError."""
    directory, name = os.path.split(page_path)
    # Named like a page's draft, which the agent removes if its process dies here.
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
    """The look beside this page, None if there is none. With `owner` the file must be that user's. Raises LookError."""
    path = path_of(page_path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LookError(f"{path}: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > BYTES_MAX:
            raise LookError(f"{path}: no file of at most {BYTES_MAX} bytes")
        if owner is not None and found.st_uid != owner:
            raise LookError(f"{path}: owned by another user than the page")
        with open(fd, "rb", closefd=False) as file:
            raw = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise LookError(f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)
    try:
        return checked(json.loads(raw))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LookError(f"{path}: {type(error).__name__}: {str(error)[:200]}") from None


def looks_in(directory: str) -> tuple[list[dict], list[str]]:
    """The looks beside the pages of a directory, the newest attempt of each rank, and the errors of invalid files."""
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
    """A look with the entries of its format and no more. Raises ValueError, KeyError or TypeError."""
    valid = _checked(look, LOOK)
    if valid["version"] != 1:
        raise ValueError("not version 1 of a deep look")
    result = look["seen"]
    return {**valid, "seen": None if result is None else checked_result(result)}


def checked_result(result) -> dict:
    if not isinstance(result, dict):
        raise ValueError("no object")
    valid, cause = _checked({**dict.fromkeys(_TO_DEVICE, 0), **result}, RESULT), result["cause"]
    if sum(valid["states_ns"].values()) != valid["wall_ns"]:
        raise ValueError(f"the states do not sum to the step's {valid['wall_ns']} ns")
    if cause is not None:
        gain = cause["gain"]
        cause = {**_checked(cause, CAUSE), "gain": gain}
        if cause["state"] not in STATES or not (gain is None or 1 <= gain < 1e18):
            raise ValueError("an impossible cause")
    return {**valid, "cause": cause}


def _checked(value, form) -> Any:
    if isinstance(form, dict):
        if not isinstance(value, dict):
            raise ValueError("no object")
        return {name: _checked(value[name], inner) for name, inner in form.items()}
    if isinstance(form, list):
        return [_checked(row, form[0]) for row in value[:TOP_MAX]]
    if form is int:
        if type(value) is not int or not 0 <= value < page.NS_MAX:
            raise ValueError(f"{str(value)[:40]} is no count")
        return value
    if not isinstance(value, str):
        raise ValueError("no text")
    return clean_text(value, form)


# -- text


def h2d_rate(result: dict) -> float | None:
    """Bytes a second of the traced step's copies from host memory to the device; None where there was none."""
    return result["h2d_bytes"] / result["h2d_ns"] * 1e9 if result["h2d_bytes"] and result["h2d_ns"] else None
