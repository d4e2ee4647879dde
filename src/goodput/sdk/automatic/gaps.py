"""Decides which phase the time before an outermost phase is charged to: compiled in recorder/_fast.c, which has the same in C.

A hook claims the time before its phase for another phase, if it is short enough: that after a forward pass may be the
loss, that after a backward pass the clipping of gradients, and that before a forward pass the making of a batch.
"""

from __future__ import annotations

from goodput.rank_page import page
from goodput.sdk.recorder.recorder import compiled

# The part of the forward passes of a loss that what lies between them may take, such as the code that joins two models.
FORWARD_DIVISOR = 4
# The part of a backward pass that other work before the optimizer may take, where the batch may be made there too.
BATCH_DIVISOR = 4
_NONE = page.W_TOTALS
_FORWARD = page.W_TOTALS + page.PHASES.index("forward")


class PythonGaps:
    """The time between outermost phases of one process. Only the step thread calls its methods, except `set_batch_word`.

    claimed       word that the time before the next phase may be charged to, that of the phase "none" if it is unclaimed
    batch_word    word that the making of a batch is charged to, 0 where a loader is known
    may_be_batch  whether the time up to the next phase may be the making of a batch
    forward_ns    ns of forward passes since the last backward pass
    between_ns    ns between phases since the last backward pass, or the first forward pass after it
    backward_ns   ns of the last backward pass
    """

    def __init__(self):
        self.claimed, self.batch_word, self.may_be_batch = _NONE, 0, False
        self.forward_ns = self.between_ns = self.backward_ns = 0

    def claim(self, word: int) -> None:
        """The time before the next phase may belong to this word."""
        self.claimed = word

    def claim_batch(self) -> bool:
        """The time before the next phase is the making of a batch, if nothing contradicts it; returns whether it is."""
        if not self.may_be_batch or not self.batch_word:
            return False
        self.claimed = self.batch_word
        return True

    def drop_claim(self) -> None:
        self.claimed = _NONE

    def word_before(self, clock, total: int, now_ns: int) -> int:
        """The word to charge the time up to `now_ns` to, at which the phase with this total begins.

        The clock reads its own fields after this call, in which a signal handler may run.
        """
        claimed, current, gap_ns = self.claimed, clock.current, now_ns - clock.last_ns
        self.claimed = _NONE
        if clock.stack is not None:
            return current
        gap_ns = gap_ns if gap_ns > 0 else 0
        self.between_ns = between_ns = self.between_ns + gap_ns
        if claimed == _NONE:
            self.may_be_batch = False  # Work of another kind: what surrounds it need not be the batch.
            return current
        batch, length = self.may_be_batch and self.batch_word, self.backward_ns
        if batch:
            length //= BATCH_DIVISOR
        elif length < clock.length:
            length = clock.length
        if claimed == self.batch_word:
            return claimed
        if claimed == _FORWARD and total == claimed:
            # Between two forward passes: also the gaps together must be short, since they may be many.
            is_short = gap_ns <= clock.length and between_ns <= self.forward_ns // FORWARD_DIVISOR
            return claimed if is_short else current
        if between_ns <= length:
            return claimed
        if not batch:
            return current
        self.between_ns = (
            between_ns - gap_ns
        )  # The making of a batch leaves the bound to the work on gradients.
        return batch

    def forward_ended(self, clock, follows: bool, may_be_batch: bool) -> None:
        """A forward pass has ended; `follows` is whether it follows another without a backward pass between them."""
        self.may_be_batch = may_be_batch
        if not follows:
            self.forward_ns = self.between_ns = 0
        if clock.stack is None:  # Else `length` is of another phase.
            self.forward_ns += clock.length

    def backward_ended(self, clock) -> None:
        self.may_be_batch, self.forward_ns, self.between_ns = True, 0, 0
        if clock.stack is None:
            self.backward_ns = clock.length

    def step_ended(self) -> None:
        """A batch may be made next."""
        self.may_be_batch = True

    def set_batch_word(self, word: int) -> None:
        """Charge the making of batches to this word; 0 for none. From whichever thread."""
        self.batch_word = word

    def page_opened(self) -> None:
        self.may_be_batch = False

    def forget(self) -> None:
        """The phases that are open are forgotten."""
        self.claimed, self.may_be_batch = _NONE, False


if compiled:
    from goodput.sdk.recorder._fast import Gaps
else:
    Gaps = PythonGaps
