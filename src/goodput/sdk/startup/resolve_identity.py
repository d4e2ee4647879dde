"""Who this process is: what the user gave to `goodput.start`, then the launcher's environment, then the process.

In: the arguments of `start`, which may be anything, and an environment. Out: an identity that `check_identity`
vouches for. A wrong argument is replaced by its default and said through `say`. It opens no page.

    identity_of({"rank": 3}, os.environ, print, fresh=True)["rank"]    # 3
"""

from __future__ import annotations

import os
import sys
import time

from goodput.rank_page import page
from goodput.sdk.recorder.recorder import whole
from goodput.wire.identity import BOUNDS, PLACES, RATES, check_identity, clean_text, from_environment

# A process older than this when it calls `start` was not started for the run (a notebook, a server).
STARTUP_SECONDS_MAX = 900.0
TEXTS = ("group", "device", "device_uuid", "dtype")


def identity_of(given: dict, environ, say, fresh: bool, placed: dict | None = None) -> dict:
    """The identity of this process. It begins with the process if `fresh`, else now.

    `placed` is what was learnt of run, rank and world size where neither the user nor the launcher names them.
    """
    launched = from_environment(environ)
    for text in launched["ignored"]:
        say(f"ignored: {text}")
    placed = placed or {}
    if "rank" not in launched:
        launched.update({name: placed[name] for name in ("rank", "world_size") if name in placed})
    rank = _integer(given, "rank", launched.get("rank", 0), say)
    is_rank = "rank" in launched or "rank" in given
    named = launched.get("run") or placed.get("run") or _script_name(is_rank)
    identity = {
        "run": _text(given, "run", 128, named, say),
        "rank": rank,
        "world_size": max(_integer(given, "world_size", launched.get("world_size", 1), say), rank + 1),
        "attempt": _integer(given, "attempt", launched.get("attempt", 1), say),
        "local_rank": launched.get("local_rank", 0),
        "launcher": launched["launcher"],
        "host": clean_text(os.uname().nodename, 255),
        "pid": os.getpid(),
        "pid_start_ticks": page.process_start_ticks(),
        "devices": _integer(given, "devices", 1, say),
        **{name: _integer(given, name, None, say) for name in PLACES},
        **{name: _text(given, name, 64, "", say) for name in TEXTS},
        **{name: _rate(given, name, say) for name in RATES},
        **(_process_start() if fresh else now()),
    }
    return check_identity(identity)


def told_of(given: dict, say) -> dict:
    """What `given` says of a rank beyond who it is: only what is valid, as it stands in an identity."""
    found = {name: _text(given, name, 64, "", say) or None for name in TEXTS if name in given}
    found.update({name: _rate(given, name, say) for name in RATES if name in given})
    whole_numbers = (*PLACES, "devices", "world_size")
    found.update({name: _integer(given, name, None, say) for name in whole_numbers if name in given})
    return {name: value for name, value in found.items() if value is not None}


def now() -> dict:
    """This moment on both clocks, as the start of an attempt."""
    return {"start_unix_ns": time.time_ns(), "start_mono_ns": time.perf_counter_ns()}


def shown(value) -> str:
    """A value in a message: on one line, short, and whatever its own methods raise."""
    try:
        return clean_text(repr(value) if not isinstance(value, Exception) else str(value), 120)
    except Exception:
        return f"a {type(value).__name__}"


def _integer(given: dict, name: str, default, say):
    value = given.get(name)
    if value is None:
        return default
    least, most = BOUNDS[name]
    number = whole(value, least, most + 1)
    if number is None:
        say(f"start({name}={shown(value)}): want a whole number in {least}..{most}; using {default}")
        return default
    return number


def _rate(given: dict, name: str, say) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    try:
        rate = float(value)
        if 0 < rate < 1e30:
            return rate
    except Exception:
        pass
    say(f"start({name}={shown(value)}): want a positive number; taken as unknown")
    return None


def _text(given: dict, name: str, most: int, default: str, say) -> str:
    value = given.get(name)
    try:
        return clean_text(default if value is None else value, most) or clean_text(default, most)
    except Exception:
        say(f"start({name}={shown(value)}): no text; using {default!r}")
        return clean_text(default, most)


def _script_name(is_rank: bool) -> str:
    """The script and the process; of ranks that one process has spawned that process, so that they share a run."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None) or "python"
    processes = sys.modules.get("multiprocessing.process") if is_rank else None
    parent = processes.parent_process() if processes is not None else None
    pid = os.getpid() if parent is None else parent.pid
    return f"{os.path.splitext(os.path.basename(path))[0]}-{pid}"


def _process_start() -> dict:
    """The process's own start on both clocks, so that imports count as startup; now, if that is long past."""
    moment = now()
    ticks = page.process_start_ticks()
    if ticks is None or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return moment
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    if not 0 <= age_seconds <= STARTUP_SECONDS_MAX:
        return moment
    return {clock: ns - int(age_seconds * 1e9) for clock, ns in moment.items()}
