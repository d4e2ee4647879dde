"""The overhead budget: what measuring costs is measured, and when it is too much, less is measured.

In: now and then, the cost of one step (recorder.own_ns), of one at rest (rest_ns) and of the device clock. Out: every how many
steps one is put on the device clock, then every how many one is measured by phases; in the page's SAMPLING words.

Over the budget the device clock is sampled first: 1 step in 2, 4, … 64, then none. Then phases are: between two
measured steps the others *rest*, a quarter of a second but 128 steps at least and 512 at most: hooks do nothing but
count, and time the waits for batches. A rest that takes twice as long, and a quarter of a second at least, is over with
the next step of any optimizer, and all steps are measured again. (To begin and end a rest is dear, some hundred
microseconds where caches are cold; short rests would show in the 99th percentile of steps.)

What is not those waits is charged when they are over, in the proportions of the last measured steps, so the totals
still close; time beyond twice what such steps take is charged to no phase. All steps are measured again once that would
cost less than half of the budget; below a quarter of it the device clock comes back.

What is measured, in one step now and then, is the time inside boundaries and, with the compiled recorder, all that is
spent in its hooks, at rest too. What Python spends on calling a hook is not in it, nor are Python hooks.
"""

from __future__ import annotations

from operator import sub
from time import perf_counter_ns

from goodput.rank_page import page

DEFAULT = 0.005
LEAST = 1e-9  # A smaller share is this one: a division by it stays finite.
EVERY_MIN, EVERY_MAX = 128, 512
REST_NS = 250_000_000  # A rest of more than EVERY_MIN steps is not longer: nobody sees a step end meanwhile.
DEVICE_EVERY_MAX = 64
CHECK_STEPS = 64  # also in _hooks.c
FORGOTTEN = 16  # What measuring every step costs is believed a 16th less with each judgement at rest.
LOADER = page.PHASES.index("loader")
KEPT = 7  # A measured step weighs an eighth of what steps are taken to be like.
MEASURES = 5  # of one step each; their median is the cost of a step, whatever interrupted one of them


def share_of(environ, say) -> float:
    """`GOODPUT_BUDGET` as a share of step time: 0.005 or 0.5%."""
    text = environ.get("GOODPUT_BUDGET", "").strip()
    if not text:
        return DEFAULT
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        if 0 < share <= 1:
            return max(share, LEAST)
    except ValueError:
        pass
    say(f"GOODPUT_BUDGET={text[:40]!r}: want a share such as 0.005 or 0.5%; using {DEFAULT}")
    return DEFAULT


class Budget:
    """Keeps the cost of measuring within `share` of the time of steps."""

    def __init__(self, auto, share: float):
        self.auto, self.recorder, self.share = auto, auto.recorder, share
        self.measures: list[int] = []
        self.phases_every = 1
        self.words, self.parked, self._base = None, None, None
        # Since the last look: what beginnings and ends of rests took, and how many steps were at rest.
        self._resting_ns, self._rested = 0, 0
        # What a step costs where every step is measured. One alone, just after a rest's end, costs less: caches are warm.
        self._every_ns = 0
        # What steps are like: ns by phase of the last measured ones, weighted, and of how many; samples of the last three,
        # of which the median counts: an epoch's last batch is often a short one.
        self.split, self.weight, self.counts = [0] * page.PHASE_SLOTS, 0.0, []
        self.disturbed = False

    def _restart(self) -> None:
        recorder = self.recorder
        self.last_ns, self.last_steps = perf_counter_ns(), recorder.steps
        self.device_ns = getattr(recorder.device, "cost_ns", 0)
        self.counted_ns = recorder.words[page.W_COST] if recorder.words is not None else 0
        self.measures.clear()
        self.counts.clear()
        self._measure_one()
        self._write()
        self.words = recorder.words  # Last: an interrupt that comes before lets all of this be done again.

    def look(self) -> None:
        """Called every CHECK_STEPS steps: take the measure, judge it, measure another step."""
        recorder = self.recorder
        if recorder.words is not self.words:
            return self._restart()
        now, steps = perf_counter_ns(), recorder.steps
        done, spent = steps - self.last_steps, now - self.last_ns
        device_ns = getattr(recorder.device, "cost_ns", 0)
        measured = max(done // self.phases_every, 1)
        self.measures = [*self.measures[1 - MEASURES :], max(recorder.own_ns, 0)]
        typical = sorted(self.measures)[len(self.measures) // 2]
        at_rest = min(recorder.rest_ns, typical) * self._rested + self._resting_ns
        cost = typical * measured + at_rest + device_ns - self.device_ns
        # What phases and steps are known to cost is in the page already.
        counted = recorder.words[page.W_COST] - self.counted_ns
        recorder.extra_cost_ns += max(cost - counted, 0)
        self.counted_ns = recorder.words[page.W_COST] + max(cost - counted, 0)
        self.last_ns, self.last_steps, self.device_ns = now, steps, device_ns
        self._measure_one()
        if len(self.measures) == MEASURES and spent > 0:
            self._every_ns = (
                typical
                if self.phases_every == 1
                else max(self._every_ns - self._every_ns // FORGOTTEN, typical)
            )
            self._judge(cost / spent, self._every_ns * done / spent, spent // max(done, 1))
        self._write()

    def _measure_one(self) -> None:
        """Let the next measured step, and one of those at rest before it, be taken the measure of."""
        recorder = self.recorder
        recorder.own_ns, recorder.rest_ns, recorder.measuring = 0, 0, True
        self._resting_ns, self._rested = 0, 0

    def _judge(self, share: float, whole: float, step_ns: int) -> None:
        """`share` of the time was spent; `whole` would be, were all steps, of `step_ns`, measured by phases."""
        device = self.recorder.device
        fitting = max(EVERY_MIN, min(EVERY_MAX, REST_NS // max(step_ns, 1)))
        on_device = getattr(device, "every", 0)
        if share > self.share:
            if on_device and on_device < DEVICE_EVERY_MAX:
                device.every = on_device * 2
            elif on_device:
                self.parked, self.recorder.device = device, None
            elif self.phases_every != fitting:
                self.phases_every = fitting
            else:
                return
        elif self.phases_every > 1:
            if whole > self.share / 2:
                return
            self.phases_every = 1
        elif share < self.share / 4:
            if self.parked is not None:
                self.recorder.device, self.parked = self.parked, None
            elif on_device > 1:
                device.every = on_device // 2
            else:
                return
        else:
            return
        self.measures.clear()

    def rest(self) -> None:
        """After a measured step: let the next ones rest, if phases are sampled."""
        recorder = self.recorder
        if self.phases_every == 1 or not recorder.began or recorder.depth or recorder.device is not None:
            return
        if recorder.unseen:  # Who rests sees no step of such a kind.
            return
        began = perf_counter_ns()
        words, number = recorder.words, recorder.steps
        before, samples = [0] * page.PHASE_SLOTS, 0
        if self._base is not None and self._base[0] == number:
            _, before, samples = self._base
        elif number > 1:
            at = page.W_STEP_RING + (number - 2) % page.STEP_RING * page.STEP_WORDS
            totals = words[at + page.R_TOTALS : at + page.R_OUTSIDE].tolist()
            outside = words[at + page.R_OUTSIDE : at + page.R_OUTSIDE + page.PHASE_SLOTS].tolist()
            before, samples = list(map(sub, totals, outside)), words[at + page.R_SAMPLES]
        # What lay between the steps, an evaluation say, is not what steps are like.
        self._learn([max(ns, 0) for ns in map(sub, self._inside(), before)])
        self.counts = [*self.counts[-2:], max(recorder.samples - samples, 0)]
        usual = int(sum(self.split) / self.weight) if self.weight else 0
        recorder.rest_until = began + max(2 * usual * self.phases_every, REST_NS)
        recorder.rest_loader_ns = 0
        recorder.rested, recorder.resting = 0, self.phases_every - 1
        self._resting_ns += perf_counter_ns() - began

    def wake(self) -> None:
        """The rest is over: charge its time, enter its steps as one record, and measure from here on."""
        recorder = self.recorder
        rested, recorder.resting = recorder.rested, 0
        began = perf_counter_ns()
        late, split = began >= recorder.rest_until, self.split
        waited_ns, recorder.rest_loader_ns = recorder.rest_loader_ns, 0
        if waited_ns:
            # Of batches it is known, also of goodput.loader's. Who holds the phase by hand has it in the proportions.
            split = [0 if i == LOADER else ns for i, ns in enumerate(split)]
            recorder.charge_part(LOADER, waited_ns, began)
        usual = int(sum(split) / self.weight) if self.weight else 0
        recorder.charge_shared(began, split, usual * 2 * (rested + 1))
        if rested and recorder.step_start_ns:
            recorder.steps += rested - 1
            recorder.step_next += rested - 1
            recorder.began = recorder.turn_step(sorted(self.counts)[(len(self.counts) - 1) // 2] * rested)
            self.auto.count("unmeasured_steps", rested, add=True)
        self._rested += rested
        recorder.rested = 0
        self._base = recorder.steps + 1, self._inside(), recorder.samples
        self._resting_ns += perf_counter_ns() - began
        if late:
            # Steps are not what they were: the budget is for other ones.
            self.look()
            self.phases_every = 1
            self.measures.clear()
            self._write()

    def _learn(self, step: list[int]) -> None:
        """Take a measured step. One that is much longer was disturbed, and teaches nothing; a second in succession
        counts as one of twice the usual length.
        """
        length, most = sum(step), int(2 * sum(self.split) / self.weight) if self.weight else 0
        self.disturbed = 0 < most < length and not self.disturbed
        if self.disturbed:
            return
        if 0 < most < length:
            step = [ns * most // length for ns in step]
        self.split = [ns * KEPT // (KEPT + 1) + new for ns, new in zip(self.split, step, strict=True)]
        self.weight = self.weight * KEPT / (KEPT + 1) + 1

    def _inside(self) -> list[int]:
        """The time inside steps so far, by phase."""
        totals, outside = (
            self.recorder.words[word : word + page.PHASE_SLOTS].tolist()
            for word in (page.W_TOTALS, page.W_OUTSIDE)
        )
        return list(map(sub, totals, outside))

    def _write(self) -> None:
        self.auto.count("phases_every", self.phases_every)
        self.auto.count("budget_ppm", round(self.share * 1e6))
