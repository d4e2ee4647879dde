"""Tokens that a model has generated since the last training call, and whether the next training call is made on them.

They are taken to be trained on if the call's token ids have the length of a whole generated sequence, or lack its last
token, in no more rows than were generated, and no batch was fetched in between. This compares shapes alone, since
reading tokens on a device would wait for it.
"""

from __future__ import annotations

from time import perf_counter_ns

from goodput.rank_page import page

REPEATS_MAX = 2  # calls of one shape after the last one that grew; more are a context that is cut off


class Generation:
    """The sequences generated without gradients since the last training call."""

    def __init__(self):
        self.rows = self.repeats = 0
        self.lengths = 0, 0  # of the longest and of the last sequence
        self.fetched = self.matched = False

    def grow(self, before: tuple[int, int], continues: bool) -> None:
        """Another token is generated, after a call on `before`: (rows, length)."""
        longest, last = self.lengths
        if continues:
            last += 1
        else:
            self.rows, last, self.fetched = self.rows + before[0], before[1] + 2, False
        self.lengths, self.repeats = (max(longest, last), last), 0

    def match(self, rows: int, length: int) -> bool:
        """Note a call with gradients on token ids of this shape; whether it is made on what was generated."""
        is_length = length in self.lengths or length + 1 in self.lengths
        if 0 < rows <= self.rows and is_length and self.repeats <= REPEATS_MAX and not self.fetched:
            self.matched = True
        return self.matched


class Generations:
    """What is generated between training calls, and the phase that this time has, which is known later.

    is_trained_on  whether training calls are made on what the model generates; None while that is not known
    current        what was generated since the last training call; None if nothing was
    left_ns        when `train()` followed a generation of which it is not known what it is for
    """

    def __init__(self, auto):
        self.auto, self.recorder = auto, auto.recorder
        self.is_trained_on: bool | None = None
        self.forget()

    def forget(self) -> None:
        """Another training begins."""
        self.current: Generation | None = None
        self.left_ns = 0

    def is_rollout(self) -> bool:
        """Whether generating now is taken to feed the next update."""
        return bool(self.is_trained_on) and self.auto.may_roll_out()

    def token(self, before: tuple[int, int], continues: bool) -> None:
        """A call without gradients generates a token, after one on `before`: (rows, length)."""
        if self.current is None:
            self.current = Generation()
            self._watch_next_call()
        self.current.grow(before, continues)
        if self.is_rollout():
            self.auto.start_rollout()
        elif not self.auto.training.evaluating:
            self.auto.start_evaluation()

    def trains_on(self, rows: int, length: int) -> None:
        """A training call on token ids of this shape, the first since tokens were generated."""
        generation = self.current
        if generation is None:
            return
        if generation.match(rows, length):
            self.is_trained_on, self.auto.rollout_step = True, self.recorder.steps
        elif generation.fetched or self.is_trained_on is None:
            self.is_trained_on = False
        self.auto.stop_evaluation()
        self.current = None

    def fetched(self) -> None:
        """A batch is fetched to train on: what was generated before is not what is trained on, if that follows."""
        if self.current is not None:
            self.current.fetched = True
            self._watch_next_call()

    def left(self) -> None:
        """The model is back in training mode: the evaluation is over, unless it turns out to be a rollout."""
        if self.current is not None and self.is_trained_on is None:
            self.left_ns = self.left_ns or perf_counter_ns()
        else:
            self.auto.stop_evaluation()

    def name_phase(self) -> None:
        """The open phase ends: it is a rollout if its tokens are trained on, else an evaluation, up to `left_ns`."""
        auto, recorder, generation, left_ns = self.auto, self.recorder, self.current, self.left_ns
        self.left_ns = 0
        if generation is None or recorder.current != auto.open_phase.total:
            return
        phase = auto.rollout if self.is_trained_on or generation.matched else auto.evaluation
        if phase is not auto.open_phase:
            recorder.rename(phase)
            auto.open_phase = phase
        if phase is auto.evaluation and left_ns > recorder.last_ns and not recorder.phases_off:
            recorder.charge(left_ns)
            recorder.charge_last(page.W_TOTALS)

    def _watch_next_call(self) -> None:
        """A compiled hook would not look at the next training call."""
        self.auto.call_after_step()
