"""Records calls of process groups in the rank page: what was entered, by which group, and when it was left.

A record is written at the call and completed when the call returns and when its Work or tensor is waited for. What a
process group does without a call from Python is not seen. Compiled it takes about 0.2 us a call (_collectives.c,
bench/trainer/collectives.py), in Python about 5 us. Nothing is kept alive: a Work and its futures are known by their addresses until one is waited for.

The time of the phase `communication` is attributed to records, so that the sums by group and operation never exceed
it: at the end of a wait to what was waited for, at the end of the phase to the last record of the step thread.
"""

from __future__ import annotations

import functools
import weakref
from _thread import get_ident
from time import perf_counter_ns

from goodput.rank_page import collective_records as layout
from goodput.rank_page import page
from goodput.sdk.recorder.recorder import Recorder, compiled
from goodput.user_exceptions import reraise_from_handler

TYPE_CHECKING = False  # See step_clock.py.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FLAG = {name: 1 << i for i, name in enumerate(layout.FLAGS)}
_BASE, _RING = page.W_COLLECTIVES, page.W_COLLECTIVES + layout.AT_RING
_COMMUNICATION = layout.CONSTANTS["communication"]
_NOT_HIDDEN = FLAG["other_thread"] | FLAG["raised"]  # calls of which it is not known
_SEND, _REDUCE_SCATTER = layout.OPERATIONS.index("send"), layout.OPERATIONS.index("reduce_scatter")


class PythonRecords:
    """The records of one process, in Python. `slots` has groups by id and name, `dtypes` the code of each dtype."""

    prepare: Callable[[], None]  # of CollectiveRecords, as is register
    register: Callable[[Any], int]

    def __init__(self, recorder: Recorder, slots: dict, dtypes: dict):
        self.recorder, self.slots, self.dtypes = recorder, slots, dtypes
        self.functional = self.reducing = self.coalesced = 0
        self.calls, self.point_to_point = [0] * layout.GROUPS_MAX, [0] * layout.GROUPS_MAX
        self.page_changed()

    def page_changed(self) -> None:
        """Begin anew in another page."""
        self.ready = self.written = self.last = self.attributed = self.first_reduced = 0
        self.issued: dict[int, tuple[int, int]] = {}
        self.hidden: dict[
            tuple[int, int], int
        ] = {}  # places in the table of hidden time, by slot and operation

    def forget(self) -> None:
        """Look process groups up again: one is gone."""

    def settle(self) -> None:
        """Attribute all communication so far to the last record of the step thread."""
        if self.ready == 1:
            self._attribute(self.last, perf_counter_ns())

    def leave_reduced(self) -> None:
        """A backward pass has ended, and with it the wait for what its reducers issued."""
        if self.first_reduced:
            self._leave(self.first_reduced, self.written, FLAG["reducer"])
        self.first_reduced = 0

    def issued_by(self, work, first: int) -> None:
        """Waiting for this object waits for the coalesced records from `first` on."""
        if first > 0 and work is not None:
            self._issue(id(work), first, self.written)

    def awaits(self, future) -> bool:
        """Whether waiting for this future waits for a Work."""
        return _awaited(future, FLAG["future"]) in self.issued

    def passed_on(self, awaited, future, flags: int) -> None:
        """`future` is one of a Work, or with the flag of a future: it waits for the same records, if any."""
        found = self.issued.get(_awaited(awaited, flags))
        if found is None:
            self.issued.pop(_awaited(future, FLAG["future"]), None)  # Of a future that is gone.
        else:
            self._issue(_awaited(future, FLAG["future"]), *found)
            self._mark_future(found, True)

    def completed(self, awaited, flags: int) -> None:
        """A Work, or with the flag a future, was found to be complete, without a wait."""
        found = self.issued.pop(_awaited(awaited, flags), None)
        if found is not None:
            self._leave(*found, _flag_of(found))

    def _mark_future(self, issued: tuple[int, int], is_taken: bool) -> None:
        """Set whether futures of these records are taken that nothing waits for. Reducers wait for theirs in C++."""
        if self.ready != 1:
            return
        (first, last), words, flag, future = (
            issued,
            self.recorder.words,
            _flag_of(issued),
            FLAG["future"] << 16,
        )
        for number in range(max(first, last - layout.RING + 1), min(last, self.written) + 1):
            at = _record_at(number)
            flags = words[at + layout.R_KIND] >> 16 & 0xFFFF
            is_open = words[at] == number and not words[at + layout.R_EXIT]
            if is_open and not flags & FLAG["reducer"] and flags & flag == flag:
                kind = words[at + layout.R_KIND]
                words[at + layout.R_KIND] = kind | future if is_taken else kind & ~future

    # -- what the compiled Call does

    def call(self, function, operation, tensors=-1, group=-1, peer=-1, flags=0, exact=None, python=None):
        """A function that calls this one and records it, or for operation 0 the end of the wait."""

        def call(*args, **kwargs):
            first = args[0] if args else None
            if isinstance(first, list):
                first = first[0] if first else None
            if exact is not None and type(first) not in exact:
                return (python or function)(*args, **kwargs)
            if not operation:
                return self._waited(function, args, kwargs, flags)
            me = get_ident() if flags & FLAG["functional"] else 0
            if me and self.functional == me:
                return function(*args, **kwargs)
            try:
                number = self._begin(args, operation, tensors, group, peer, flags)
            except Exception as error:
                reraise_from_handler(error)
                number = 0
            if not number:
                return function(*args, **kwargs)
            self.functional = me or self.functional
            try:
                result = function(*args, **kwargs)
            except BaseException:
                self._returned(number, None, flags, FLAG["raised"])
                raise
            finally:
                self.functional = 0 if me else self.functional
            self._returned(number, result, flags)
            return result

        return call

    def _waited(self, function, args, kwargs, flags: int):
        found = self.issued.pop(_awaited(args[0], flags), None) if args else None
        raised = FLAG["raised"]
        if found is not None:
            self._mark_future(found, False)
        try:
            result = function(*args, **kwargs)
            raised = 0
            return result
        finally:
            if found is not None:
                self._leave(*found, _flag_of(found), raised)

    def _begin(self, args, operation: int, tensors: int, group: int, peer: int, flags: int) -> int:
        """Enter the record of a call; 0 if there is none to write."""
        recorder = self.recorder
        if recorder.thread == 0 or group >= len(args):
            return 0
        slot, paired = self._slot_of(args[group]), operation >= _SEND
        counts = self.point_to_point if paired else self.calls
        if slot >= 0:
            counts[slot] += 1
        if self.ready == 0:
            self.prepare()
        if self.ready != 1:
            return 0
        if slot < 0:
            recorder.words[_BASE + layout.DROPPED] += 1
            return 0
        size, dtype = self._measure(args[tensors]) if 0 <= tensors < len(args) else (0, 0)
        if operation == _REDUCE_SCATTER and flags & FLAG["functional"] and isinstance(args[group - 1], int):
            size //= max(args[group - 1], 1)  # It has the input, which is all ranks' parts.
        other = 0
        if 0 <= peer < len(args):
            other = args[peer] if isinstance(args[peer], int) else getattr(args[peer], "rootRank", -1)
            other = other + 1 if -1 < other < 1 << 32 else 0
        return self._enter(slot, counts[slot], operation, dtype, size, other, flags)

    def _enter(
        self, slot: int, sequence: int, operation: int, dtype: int, size: int, peer: int, flags: int
    ) -> int:
        recorder = self.recorder
        words, elsewhere = recorder.words, recorder.thread != get_ident()
        flags |= FLAG["reducer"] if self.reducing else 0
        flags |= FLAG["coalesced"] if self.coalesced else 0
        flags |= FLAG["other_thread"] if elsewhere else 0
        current, stack = recorder.current, getattr(recorder, "stack", None)
        if current == _COMMUNICATION and stack is not None:
            current = stack[1]
        phase = 0 if recorder.phases_off else current - page.W_TOTALS
        group, sums = _BASE + layout.AT_GROUPS + slot * layout.GROUP_WORDS, _sums_at(slot, operation)
        kind, now = operation | dtype << 8 | flags << 16 | slot << 32, perf_counter_ns()
        self.written = number = self.written + 1
        at = _record_at(number)
        words[at + layout.R_SEAL] = 0
        words[at + layout.R_WAITED] = 0 if elsewhere else self._waited_ns(now)
        words[at + 1 : at + 11] = _packed(
            (kind, sequence, peer, size, now, 0, 0, 0, recorder.step_next + page.STEP_BIAS, phase)
        )
        words[at] = words[at + layout.R_SEAL] = number
        words[group + (layout.G_P2P if operation >= _SEND else layout.G_CALLS)] = sequence
        words[group + layout.G_LAST] = number
        words[sums] += 1
        words[sums + 1] += size
        words[_BASE + layout.WRITTEN] = number
        if not elsewhere:
            self.last = number
        if flags & FLAG["reducer"] and not self.first_reduced:
            self.first_reduced = number
        if self.coalesced < 0:
            self.coalesced = number
        return number

    def _returned(self, number: int, result, flags: int, more_flags: int = 0) -> None:
        now, at, words = perf_counter_ns(), _record_at(number), self.recorder.words
        if self.ready != 1 or words[at] != number:
            return
        words[at + layout.R_RETURN] = now
        words[at + layout.R_KIND] |= more_flags << 16
        if result is None:
            words[at + layout.R_EXIT] = now
            self._attribute(number, now)
            if not (words[at + layout.R_KIND] >> 16) & _NOT_HIDDEN:
                self._add_hidden(words[at + layout.R_KIND], 1, 0, 0)
        for work in result if isinstance(result, list) else (result,):
            self._issue(_awaited(work, flags), number, number)

    def _issue(self, work: int, first: int, last: int) -> None:
        if len(self.issued) >= layout.RING:
            self.issued.clear()
        if work:
            self.issued[work] = first, last

    def _leave(self, first: int, last: int, flag: int, raised: int = 0) -> None:
        """These records, of those with the flag, have been waited for; `raised` is the flag of an error.

        Of the time since they were entered that was not waiting, the last one was under way in all if the wait has
        taken time, since it ended only then; if not, it is unknown when it ended. Of those of its kind before it that is
        always unknown, and of other kinds nothing is counted: DistributedDataParallel has waited for them before.
        """
        if self.ready != 1:
            return
        now, words = perf_counter_ns(), self.recorder.words
        waited, is_mine, kind, spans = self._waited_ns(now), self.recorder.thread == get_ident(), 0, []
        for number in range(min(last, self.written), max(first, last - layout.RING + 1) - 1, -1):
            at = _record_at(number)
            is_open = words[at] == number and not words[at + layout.R_EXIT]
            if is_open and words[at + layout.R_KIND] >> 16 & flag == flag:
                words[at + layout.R_KIND] |= raised << 16
                words[at + layout.R_EXIT] = now
                kind = kind or words[at + layout.R_KIND]
                is_counted = is_mine and not (words[at + layout.R_KIND] >> 16) & _NOT_HIDDEN
                if is_counted and _key(words[at + layout.R_KIND]) == _key(kind):
                    since = now - words[at + layout.R_ENTER]
                    spans.append(max(since - (waited - words[at + layout.R_WAITED]), 0))
        waited = self._attribute(last, now)
        if spans:
            self._add_hidden(kind, len(spans), spans[0] if waited >= layout.WAITED_NS else 0, max(spans))

    def _add_hidden(self, kind: int, left: int, least: int, most: int) -> None:
        """So many ns of calls of this kind were hidden; `left` of them have been waited for."""
        words, key = self.recorder.words, _key(kind)
        place = self.hidden.get(key, len(self.hidden))
        if place >= layout.HIDDEN_MAX:
            return
        self.hidden[key] = place
        at = _BASE + layout.AT_HIDDEN + place * layout.HIDDEN_WORDS
        words[at] = key[0] * layout.OPERATION_SLOTS + key[1] + 1
        for i, more in enumerate((left, least, most), 1):
            words[at + i] += more

    def _waited_ns(self, now: int) -> int:
        """The time in `communication` so far."""
        recorder = self.recorder
        total = recorder.words[_COMMUNICATION]
        if recorder.current == _COMMUNICATION and not recorder.phases_off:
            total += max(now - recorder.last_ns, 0)
        return total

    def _attribute(self, number: int, now: int) -> int:
        """Attribute the time in `communication` since the last attribution to a record; returns it."""
        recorder, at = self.recorder, _record_at(number)
        words, total = recorder.words, self._waited_ns(now)
        more = total - self.attributed
        if more <= 0 or number <= 0 or get_ident() != recorder.thread or words[at] != number:
            return 0
        self.attributed = total
        words[at + layout.R_EXPOSED] += more
        kind = words[at + layout.R_KIND]
        sums = _sums_at(kind >> 32, kind & 255)
        words[sums + 2] += more
        if not recorder.steps and not recorder.step_start_ns:
            words[sums + 3] += more
        return more

    def _slot_of(self, group) -> int:
        slot = self.slots.get(group if isinstance(group, str) else id(group))
        try:
            return self.register(group) if slot is None else slot
        except Exception as error:
            reraise_from_handler(error)
            return -1

    def _measure(self, value) -> tuple[int, int]:
        """The bytes of a tensor or a list of tensors, and the code of the first one's dtype."""
        try:
            tensors = tuple(value) if isinstance(value, (list, tuple)) else (value,)
            if not tensors or value is None:
                return 0, 0
            return sum(tensor.nbytes for tensor in tensors), self.dtypes.get(tensors[0].dtype, 0)
        except Exception as error:
            reraise_from_handler(error)
            return 0, 0


def _awaited(value, flags: int) -> int:
    """What is waited for: a Work, a future, or the memory of a functional collective's tensor, of which views are made.

    The address of a future is made odd: it may be that of a Work that is gone.
    """
    if flags & FLAG["future"]:
        return id(value) + 1
    if value is None or not flags & FLAG["functional"]:
        return 0 if value is None else id(value)
    try:
        return value.data_ptr()
    except Exception as error:
        reraise_from_handler(error)
        return 0


def _flag_of(issued: tuple[int, int]) -> int:
    """The flag of the records meant: of one Work, or of coalesced ones."""
    return 0 if issued[0] == issued[1] else FLAG["coalesced"]


def _key(kind: int) -> tuple[int, int]:
    """The slot and the operation of a record's kind."""
    return kind >> 32, kind & 255


def _record_at(number: int) -> int:
    return _RING + (number - 1) % layout.RING * layout.RECORD_WORDS


def _sums_at(slot: int, operation: int) -> int:
    return _BASE + layout.AT_SUMS + (slot * layout.OPERATION_SLOTS + operation) * layout.SUM_WORDS


def _packed(values: tuple[int, ...]) -> memoryview:
    return memoryview(b"".join(value.to_bytes(8, "little") for value in values)).cast("Q")


try:
    is_fast = compiled
    if is_fast:
        from goodput.sdk.recorder._fast import Call, Records, set_collective_constants

        set_collective_constants(**layout.CONSTANTS)
except ImportError:  # Compiled before there were records.
    is_fast = False
if not is_fast:
    Records = PythonRecords


class CollectiveRecords(Records):
    """The records of one process and its process groups.

    `describe(group)` returns the name, description, backend, own rank and all ranks of a process group, and
    `resolve(name)` the process group of a name; both may raise.
    """

    def __init__(self, recorder: Recorder, dtypes: dict, describe, resolve):
        super().__init__(recorder, {}, dtypes)
        self._describe, self._resolve = describe, resolve
        self._groups: list[tuple] = []
        self._watched: dict[
            int, tuple
        ] = {}  # by id of a process group: a weak reference, and its names in `slots`

    def wrap(self, function, operation: str, **positions):
        """Replacement of a function that records its calls; for operation "" the end of a wait.

        `positions` are `tensors`, `group` and `peer` of its arguments, `flags`, `exact` types of its first argument
        and `python`, which is called for another one.
        """
        index = layout.OPERATIONS.index(operation)
        made = (
            Call(self, function, index, **positions) if is_fast else self.call(function, index, **positions)
        )
        return functools.update_wrapper(made, function)

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
            recorder.words[_BASE : _BASE + layout.WORDS] = _packed((0,) * layout.WORDS)
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
