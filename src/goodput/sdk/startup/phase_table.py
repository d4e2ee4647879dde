"""The process's phases by name: the built-in ones and up to 16 that the user defines."""

from __future__ import annotations

from _thread import allocate_lock

from goodput.rank_page import page
from goodput.sdk.recorder.messages import short_repr
from goodput.sdk.recorder.phase import Phase
from goodput.sdk.recorder.recorder import Recorder
from goodput.user_exceptions import reraise_from_handler

LOCK_SECONDS_MAX = 0.1
# States of the built-in phases that are not called as they are.
BUILT_IN: dict[str, str] = dict.fromkeys(("forward", "backward", "optimizer"), "productive")


class PhaseTable:
    """Creates phases on first use. A call that waits longer than LOCK_SECONDS_MAX gets the phase "none"."""

    def __init__(self, recorder: Recorder, warn):
        self.by_name: dict[str, Phase] = {}
        self.states: dict[str, str] = {}  # of the user's own phases
        self._recorder, self._warn = recorder, warn
        self._lock = allocate_lock()

    def after_fork(self) -> None:
        """Another thread of the parent may have held the lock."""
        self._lock = allocate_lock()

    def define(self, name, state) -> Phase:
        """The phase `name`; the phase "none" if the name is invalid or there are too many."""
        if not self._lock.acquire(True, LOCK_SECONDS_MAX):
            return self._none()
        try:
            return self._define(name, state)
        except Exception as error:
            reraise_from_handler(error)
            self._warn(f"phase({short_repr(name)}): {type(error).__name__}; its time counts as no phase")
            return self._none()
        finally:
            self._lock.release()

    def check_state(self, name, state) -> None:
        """Report a state that the phase `name`, which is known, does not get: it has one already."""
        if type(name) is str and type(state) is str and self.states.get(name) == state:
            return
        try:
            own = self.states.get(name) or BUILT_IN.get(name, name)
            if state != own and name != "none":
                self._warn(f"phase({name!r}, state={short_repr(state)}): its state is {own}, which stays")
        except Exception as error:
            reraise_from_handler(error)

    def switch_page(self, words: memoryview, switch) -> None:
        """Enter the user's phases in a new page, then call `switch`, with no definition in between."""
        locked = self._lock.acquire(True, LOCK_SECONDS_MAX)
        try:
            for index, (name, state) in enumerate(self.states.items()):
                page.write_user_phase(words, index, name.encode(), state.encode())
            switch()
        finally:
            if locked:
                self._lock.release()

    def _define(self, name, state) -> Phase:
        known = self.by_name.get(name) if isinstance(name, str) else None
        if known is not None:
            return known
        if isinstance(name, str) and name in page.PHASES[1:]:
            if state is not None:
                self.check_state(name, state)
            return self._add(name, page.PHASES.index(name))
        raw = name.encode("utf-8", "replace") if isinstance(name, str) else b""
        if not 0 < len(raw) <= page.NAME_BYTES_MAX or not name.isprintable() or name == "none":
            wanted = f"want a name of 1 to {page.NAME_BYTES_MAX} printable bytes"
            self._warn(f"phase({short_repr(name)}): {wanted}; its time counts as no phase")
            return self._none()
        if len(self.states) >= page.USER_PHASES_MAX:
            limit = f"there are {page.USER_PHASES_MAX} user-defined phases already"
            self._warn(f"phase({name!r}): {limit}; its time counts as no phase")
            return self._none()
        return self._add_user_phase(name, raw, self._valid_state(name, state))

    def _valid_state(self, name: str, state) -> str:
        if isinstance(state, str) and state in page.USER_STATES:
            return state
        if state is not None:
            choices = ", ".join(page.USER_STATES)
            self._warn(f"phase({name!r}, state={short_repr(state)}): want one of {choices}")
        return "unattributed"

    def _add_user_phase(self, name: str, raw: bytes, state: str) -> Phase:
        index = len(self.states)
        self.states[name] = state
        if self._recorder.is_recording:
            page.write_user_phase(self._recorder.words, index, raw, state.encode())
        if state not in ("productive", "unattributed"):
            self._recorder.add_other_work(len(page.PHASES) + index)
        return self._add(name, len(page.PHASES) + index)

    def _add(self, name: str, index: int) -> Phase:
        self._recorder.used.append(index)
        return self.by_name.setdefault(name, Phase(self._recorder, name, index))

    def _none(self) -> Phase:
        if self._recorder.is_recording:
            self._recorder.drop("phase")
        return Phase(self._recorder, "none", 0)
