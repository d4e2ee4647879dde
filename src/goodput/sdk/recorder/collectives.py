"""Records calls of process groups in the rank page: what was entered, by which group, and when it was left.

A record is written at the call and completed when the call returns and when its Work or tensor is waited for. What a
process group does without a call from Python is not seen. A record takes about 0.2 us (bench/trainer/collectives.py) and
is written by the extension alone (_collectives.c): without it there are no records, and this module cannot be imported.
Nothing is kept alive: a Work and its futures are known by their addresses until one is waited for.

The time of the phase `communication` is attributed to records, so that the sums by group and operation never exceed
it: at the end of a wait to what was waited for, at the end of the phase to the last record of the step thread.
"""

from __future__ import annotations

import functools
import weakref

from goodput.rank_page import collective_records as layout
from goodput.rank_page import page
from goodput.sdk.recorder._fast import Call, Records, set_collective_constants
from goodput.sdk.recorder.recorder import Recorder

_BASE = page.W_COLLECTIVES
_COMMUNICATION = layout.CONSTANTS["communication"]
set_collective_constants(**layout.CONSTANTS)


class CollectiveRecords(Records):
    """The records of one process and its process groups.

    `describe(group)` returns the name, description, backend, own rank and all ranks of a process group, and
    `resolve(name)` the process group of a name; both may raise.
    """

    def __init__(self, recorder: Recorder, dtypes: dict, describe, resolve):
        super().__init__(recorder, {}, dtypes)
        self._describe, self._resolve = describe, resolve
        self._groups: list[tuple] = []
        # By id of a process group: a weak reference, and its names in `slots`.
        self._watched: dict[int, tuple] = {}

    def wrap(self, function, operation: str, **positions):
        """Replacement of a function that records its calls; for operation "" the end of a wait.

        `positions` are `tensors`, `group` and `peer` of its arguments, `flags`, `exact` types of its first argument
        and `python`, which is called for another one.
        """
        index = layout.OPERATIONS.index(operation)
        return functools.update_wrapper(Call(self, function, index, **positions), function)

    def prepare(self) -> None:
        """Make room for records in the open page, once."""
        recorder = self.recorder
        if not recorder.is_recording:
            return
        self.ready = -1
        if recorder.fd >= 0 and not page.reserve(recorder.fd, 8 * page.W_COLLECTIVES, 8 * layout.WORDS):
            recorder.drop("error")
            return
        if recorder.words[_BASE + layout.GROUPS]:  # Of automatic instrumentation that was removed.
            recorder.words[_BASE : _BASE + layout.WORDS] = memoryview(bytes(8 * layout.WORDS)).cast("Q")
        self.attributed = recorder.words[_COMMUNICATION]
        for slot, group in enumerate(self._groups):
            layout.write_group(recorder.words, slot, *group)
        self.ready = 1

    def register(self, group) -> int:
        """The slot of a process group, or of the one with this name; -1 if the table is full."""
        if isinstance(group, str):
            slot = self.register(resolved := self._resolve(group))
            self.slots[group] = slot
            if id(resolved) in self._watched:
                self._watched[id(resolved)][1].append(group)
            return slot
        key = id(group)
        if key in self.slots:
            return self.slots[key]
        slot = len(self._groups) if len(self._groups) < layout.GROUPS_MAX else -1
        if slot >= 0:
            description = self._describe(group)
            self._groups.append(description)
            if self.ready == 1:
                layout.write_group(self.recorder.words, slot, *description)
        self._watched[key] = (weakref.ref(group, lambda _: self._forget(key)), [])
        self.slots[key] = slot
        return slot

    def _forget(self, key: int) -> None:
        """The process group of this id is gone; another may get its id and its names."""
        _, names = self._watched.pop(key, (None, ()))
        for each in (key, *names):
            self.slots.pop(each, None)
        self.forget()
