"""This process's identity: from the arguments of `goodput.start`, else the launcher's environment, else defaults.

resolve_identity({"rank": 3}, os.environ, print, fresh=True)["rank"]    # 3
"""

from __future__ import annotations

import os
import sys
import time

from goodput.rank_page import page
from goodput.sdk.recorder.messages import short_repr
from goodput.sdk.recorder.recorder import checked_int
from goodput.sdk.startup import unranked
from goodput.user_exceptions import reraise_from_handler
from goodput.wire.identity import BOUNDS, PLACES, RATES, check_identity, clean_text, from_environment

# A process older than this when it is first measured was not started for the run (a notebook, a server).
STARTUP_SECONDS_MAX = 900.0
RUN_CHARACTERS_MAX = 128
# Declared texts, and the most characters of each.
TEXTS = {**dict.fromkeys(("group", "role", "device", "device_uuid", "dtype"), 64), "flops_unknown": 200}


def resolve_identity(given: dict, environ, warn, fresh: bool, group_rank: dict | None = None) -> dict:
    """The identity of this process, valid by `check_identity`; invalid arguments become defaults and are reported.

    It starts with the process if `fresh`, else now. `group_rank` has rank and world size of the process group, which
    count where neither the user nor the launcher names a rank. Without any rank it has the fields of
    `unranked.describe`, and the caller numbers it.
    """
    launched = from_environment(environ)
    for text in launched["ignored"]:
        warn(f"ignored: {text}")
    if "rank" not in launched:
        launched.update(group_rank or {})
    rank = _integer(given, "rank", launched.get("rank", 0), warn)
    is_rank = "rank" in launched or "rank" in given
    identity = {
        "run": _text(
            given,
            "run",
            RUN_CHARACTERS_MAX,
            launched.get("run") or _default_run(given, environ, is_rank),
            warn,
        ),
        "rank": rank,
        "world_size": max(_integer(given, "world_size", launched.get("world_size", 1), warn), rank + 1),
        "attempt": _integer(given, "attempt", launched.get("attempt", 1), warn),
        "local_rank": launched.get("local_rank", 0),
        "launcher": launched["launcher"],
        "host": clean_text(os.uname().nodename, 255),
        "pid": os.getpid(),
        "pid_start_ticks": page.process_start_ticks(),
        "devices": _integer(given, "devices", 1, warn),
        **({} if is_rank else unranked.describe(environ)),
        **{name: _integer(given, name, None, warn) for name in PLACES},
        **{name: _text(given, name, most, "", warn) for name, most in TEXTS.items()},
        **{name: _rate(given, name, warn) for name in RATES},
        **(_process_start() if fresh else now()),
    }
    return check_identity(identity)


def valid_fields(given: dict, warn) -> dict:
    """The declared fields in `given` that are valid, as they stand in an identity."""
    integers = (*PLACES, "devices", "world_size")
    found = {
        **{name: _text(given, name, most, "", warn) or None for name, most in TEXTS.items() if name in given},
        **{name: _rate(given, name, warn) for name in RATES if name in given},
        **{name: _integer(given, name, None, warn) for name in integers if name in given},
    }
    return {name: value for name, value in found.items() if value is not None}


def valid_rank(rank, world_size) -> dict:
    """Rank and world size as a dictionary, empty if one is invalid."""
    found = {}
    for name, value in (("rank", rank), ("world_size", world_size)):
        least, most = BOUNDS[name]
        found[name] = checked_int(value, least, most + 1)
    return {} if None in found.values() else found


def contradicts(given: dict, identity: dict, path: str | None) -> bool:
    """Whether `goodput.start(**given)` names another run, rank, attempt or directory than the open page has."""
    try:
        run = clean_text(given.get("run") or identity["run"], RUN_CHARACTERS_MAX)
        same_run = run == identity["run"]
        same_directory = given.get("directory") is None or path is None or _is_in(path, given["directory"])
    except Exception as error:
        reraise_from_handler(error)
        return True
    rank, attempt = (checked_int(given.get(name), 0, page.NS_MAX) for name in ("rank", "attempt"))
    same_rank = rank in (None, identity["rank"])
    # The page's attempt is higher where pages of earlier processes of this rank lie beside it.
    return not (same_run and same_directory and same_rank and (attempt or 0) <= identity["attempt"])


def _is_in(path: str, directory) -> bool:
    return os.path.realpath(directory) == os.path.realpath(os.path.dirname(path))


def now() -> dict:
    """The present as the start of an attempt, on both clocks."""
    return {"start_unix_ns": time.time_ns(), "start_mono_ns": time.perf_counter_ns()}


def _integer(given: dict, name: str, default, warn):
    value = given.get(name)
    if value is None:
        return default
    least, most = BOUNDS[name]
    number = checked_int(value, least, most + 1)
    if number is None:
        warn(f"start({name}={short_repr(value)}): want a whole number in {least}..{most}; using {default}")
        return default
    return number


def _rate(given: dict, name: str, warn) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    try:
        rate = float(value)
        if 0 < rate < 1e30:
            return rate
    except Exception as error:
        reraise_from_handler(error)
    warn(f"start({name}={short_repr(value)}): want a positive number; taken as unknown")
    return None


def _text(given: dict, name: str, most: int, default: str, warn) -> str:
    value = given.get(name)
    try:
        return clean_text(default if value is None else value, most) or clean_text(default, most)
    except Exception as error:
        reraise_from_handler(error)
        warn(f"start({name}={short_repr(value)}): want text; using {default!r}")
        return clean_text(default, most)


def _default_run(given: dict, environ, is_rank: bool) -> str:
    """Script name and pid of the program, which the processes that it starts with multiprocessing share.

    Those that have ranks and those that have none are two runs, unless the user names them.
    """
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None) or "python"
    name = f"{os.path.splitext(os.path.basename(path))[0]}-{unranked.root_pid()}"
    if is_rank:
        return name
    try:
        related = unranked.related_run(given.get("directory") or page.default_directory(environ))
    except Exception as error:
        reraise_from_handler(error)
        related = None  # There is no such directory yet.
    return related or name + "-workers" * unranked.is_child()


def _process_start() -> dict:
    """The process's own start, so that imports count as startup; now, in a notebook or a process that is old."""
    moment = now()
    ticks = page.process_start_ticks()
    if ticks is None or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return moment
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    if not 0 <= age_seconds <= STARTUP_SECONDS_MAX:
        return moment
    return {clock: ns - int(age_seconds * 1e9) for clock, ns in moment.items()}
