"""How a session starts, and what becomes of what it is told afterwards.

In: a session and the calls of `start`, `tell` and `place`, one at a time (session.py sees to that). Out: an open page
under the right identity. A session may have started by itself at the first phase or step, or with the first loader,
before it was told who it is: then the user's first `start`, or a process group that was made, still counts. Until
the first step is done the page can become that of another rank or run; later that is said and nothing changes.
What else is told of a rank goes into the open page at any time.

    tell(session, {"dtype": "bf16"}); place(session, {"rank": 3, "world_size": 8})
"""

from __future__ import annotations

import os
import sys

from goodput.rank_page import page
from goodput.sdk.recorder.recorder import FORKED, FORKED_EARLY, NOT_STARTED, STOPPED, whole
from goodput.sdk.startup.resolve_identity import identity_of, shown
from goodput.wire.identity import BOUNDS, check_identity, clean_text


def start(session, explicit: bool, given: dict) -> None:
    """See Session.start."""
    state = session.recorder.thread
    if state in (NOT_STARTED, STOPPED) or (explicit and state in (FORKED, FORKED_EARLY)):
        identity = identity_of(given, session.environ, session.say, state != STOPPED, session.placed)
        session.explicit, session.named, session.settled = explicit, given, False
        session.told.begin()
        session.told.said(given, _quiet)
        identity.update(session.told.fields(identity["world_size"]))
        session.open(identity, given.get("directory"))
        _close_before_exit(session.at_exit)
    elif state > 0 and explicit:
        try:
            _start_again(session, given)
        except Exception as error:
            session.say(f"start: what it says came too late and is not taken: {shown(error)}")


def tell(session, fields: dict) -> None:
    """See Session.tell."""
    session.told.found(fields, session.say)
    _publish(session)


def place(session, placed: dict) -> None:
    """See Session.place."""
    bounds = {name: BOUNDS[name] for name in ("rank", "world_size")}
    valid = {name: whole(placed.get(name), least, most + 1) for name, (least, most) in bounds.items()}
    if None in valid.values():
        return session.say(
            f"a place of rank {shown(placed.get('rank'))} in {shown(placed.get('world_size'))} is none"
        )
    if isinstance(placed.get("run"), str) and placed["run"]:
        valid["run"] = clean_text(placed["run"], 128)
    session.placed = valid
    if session.recorder.thread > 0:
        try:
            _take_place(session)
            _publish(session)
        except Exception as error:
            session.say(f"the place {shown(valid)} is not taken: {shown(error)}")


def _start_again(session, given: dict) -> None:
    """A call of `start` while the page is open: the first one, after the session had started by itself, counts."""
    first, session.explicit = not session.explicit, True
    session.told.said(given, session.say if first else _quiet)
    if first:
        session.named = given
        _take_place(session)
        session.recorder.words[page.W_PROVISIONAL] = 0
    elif _differs(session.identity, given):
        session.say("start was called again with another run, rank or world size; the first call holds")
    _publish(session)


def _publish(session) -> None:
    """Bring the page's identity up to what holds now."""
    if session.recorder.thread > 0:
        _rewrite(session, session.told.fields(session.identity["world_size"]))


def _rewrite(session, fields: dict) -> None:
    identity = {**session.identity, **fields}
    if identity == session.identity:
        return
    try:
        page.rewrite_identity(session.recorder.words, check_identity(identity))
        session.identity = identity
    except (ValueError, page.PageError) as error:
        session.say(f"what is told now does not fit: {shown(error)}")


def _take_place(session) -> None:
    """Be the rank that the user named or that was found out; with another page, if this one is another's."""
    recorder, named, old = session.recorder, session.named, session.identity
    identity = identity_of(named, session.environ, _quiet, True, session.placed)
    identity.update({name: old[name] for name in ("start_unix_ns", "start_mono_ns")})
    before = os.path.dirname(session.writer.path) if session.writer.path else None
    directory = named.get("directory") or before
    other = [name for name in ("run", "rank") if identity[name] != old[name]]
    if "attempt" in named and identity["attempt"] > old["attempt"]:
        other.append("attempt")
    if before is not None and os.path.realpath(directory) != os.path.realpath(before):
        other.append("directory")
    done = recorder.steps > 0 or session.settled
    if not other:
        world_size = identity["world_size"]
        _rewrite(session, {"world_size": max(world_size, old["world_size"]) if done else world_size})
    elif done:
        session.say(f"another {' and '.join(other)} came after the first step; the page stays as it began")
    else:
        identity.update(session.told.fields(identity["world_size"]))
        session.become(identity, directory)


def _differs(identity: dict, given: dict) -> bool:
    run = given.get("run")
    try:
        if run is not None and clean_text(run, 128) != identity["run"]:
            return True
    except Exception:
        return True
    numbers = ((whole(given.get(name), 0, page.NS_MAX), identity[name]) for name in ("rank", "world_size"))
    return any(said not in (None, held) for said, held in numbers)


def _close_before_exit(at_exit) -> None:
    """A child of multiprocessing ends without the interpreter's exit functions, but runs its own finalizers."""
    processes, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if processes is not None and util is not None and processes.parent_process() is not None:
        util.Finalize(None, at_exit, exitpriority=0)


def _quiet(_text: str) -> None:
    """What is wrong was said before, or is of a call that does not count."""
