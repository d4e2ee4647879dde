"""Keeps the measured cost of automatic instrumentation within a share of step time (`GOODPUT_BUDGET`, 2 %).

Every step is measured. In one of CHECK_STEPS steps the time spent in hooks and boundaries is measured too (with the
compiled recorder all of the hooks' own time, else that of boundaries). The median of MEASURES such costs is compared
with the median length of the last steps. Over the budget the device clock is parked first; if that is not enough,
phases are off as a whole: steps are still counted and timed, their time is in no phase, and the page counts them as
unmeasured. Each comes back once it would fit into half of the budget, because steps have become longer.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from goodput.rank_page import page

DEFAULT_SHARE = 0.02
SHARE_MIN = 1e-9  # Keeps divisions by the share finite.
CHECK_STEPS = 64
MEASURES = 5
LENGTHS = 15  # steps whose median length counts
RETURN_SHARE = 0.5  # of the budget, into which what comes back must fit


def last_lengths_ns(recorder, count: int) -> list[int]:
    """Lengths of up to `count` of the last steps in ns, the newest first; [0] before the first step."""
    words, found = recorder.words, []
    for number in range(recorder.steps, max(recorder.steps - min(count, page.STEP_RING), 0), -1):
        at = page.W_STEP_RING + (number - 1) % page.STEP_RING * page.STEP_WORDS
        found.append(words[at + page.R_END] - words[at + page.R_START])
    return found or [0]


def budget_share(environ, warn) -> float:
    """`GOODPUT_BUDGET` as a share of step time: 0.02 or 2%."""
    text = environ.get("GOODPUT_BUDGET", "").strip()
    if not text:
        return DEFAULT_SHARE
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        if 0 < share <= 1:
            return max(share, SHARE_MIN)
    except ValueError:
        pass
    warn(f"GOODPUT_BUDGET={text[:40]!r}: want a share such as 0.02 or 2%; using {DEFAULT_SHARE}")
    return DEFAULT_SHARE


class Budget:
    """The overhead budget of one process.

    share      of step time that measuring may cost
    costs_ns   measured costs of the last steps that were measured so, since something was last switched
    phases_ns  what phases cost a step when they were switched off
    parked     the device clock while it is not used, and `device_ns` its cost per step
    """

    def __init__(self, auto, share: float):
        self.auto, self.recorder, self.share = auto, auto.recorder, share
        self.costs_ns: deque[int] = deque(maxlen=MEASURES)
        self.phases_ns = self.device_ns = self.counted_ns = 0
        self.words = self.parked = None
        self.last_steps = self.last_device_ns = 0

    def check(self) -> None:
        """Called after every CHECK_STEPS steps: note the cost of the last one, judge it, and measure another."""
        recorder = self.recorder
        if recorder.words is not self.words:
            return self._begin_page()
        done = max(recorder.steps - self.last_steps, 1)
        device_total_ns = getattr(recorder.device, "cost_ns", 0)
        device_ns = max(device_total_ns - self.last_device_ns, 0)
        self.costs_ns.append(recorder.costs.own_ns)
        cost_ns = median(self.costs_ns)
        self._count_cost(round(cost_ns * done) + device_ns)
        self.count_unmeasured()
        self.last_device_ns = device_total_ns
        if len(self.costs_ns) == MEASURES or recorder.phases_off:
            self._judge(cost_ns, device_ns / done, median(last_lengths_ns(recorder, LENGTHS)))
        self._measure_one()

    def _begin_page(self) -> None:
        """The first check of a page, which may be another attempt's."""
        recorder = self.recorder
        self.last_steps, self.last_device_ns = recorder.steps, getattr(recorder.device, "cost_ns", 0)
        self.counted_ns = recorder.words[page.W_COST]
        self.costs_ns.clear()
        self.auto.count("budget_ppm", round(self.share * 1e6))
        self.auto.count("phases_measured", not recorder.phases_off)
        self._measure_one()
        self.words = recorder.words  # Last: after an interrupt before it all of this is done again.

    def _measure_one(self) -> None:
        self.recorder.costs.measure(True)

    def _count_cost(self, cost_ns: int) -> None:
        """Add to the page's cost what the known costs of phases and steps do not cover."""
        recorder = self.recorder
        extra_ns = max(cost_ns - (recorder.words[page.W_COST] - self.counted_ns), 0)
        recorder.costs.add(extra_ns)
        self.counted_ns = recorder.words[page.W_COST] + extra_ns

    def count_unmeasured(self) -> None:
        """Count the steps since the last call, if phases were off in them."""
        steps = self.recorder.steps
        if self.recorder.phases_off and steps > self.last_steps:
            self.auto.count("unmeasured_steps", steps - self.last_steps, add=True)
        self.last_steps = steps

    def _judge(self, cost_ns: float, device_ns: float, step_ns: float) -> None:
        """A step of `step_ns` costs `cost_ns`, besides `device_ns` for the device clock: switch what does not fit."""
        recorder, most_ns = self.recorder, self.share * step_ns
        if recorder.depth or not self.auto.training.began:
            return  # Phases are switched between steps only, and none may be open.
        if recorder.phases_off:
            if self.phases_ns <= most_ns * RETURN_SHARE:
                self.switch_phases(True)
        elif cost_ns + device_ns > most_ns:
            if recorder.device is not None:
                self.parked, self.device_ns = recorder.device, device_ns
                recorder.set_device(None)
                self.costs_ns.clear()
            else:
                self.phases_ns = cost_ns
                self.switch_phases(False)
                self.auto.session.warn(
                    f"measuring phases costs more than {100 * self.share:g} % of step time (GOODPUT_BUDGET): phases are "
                    "off until steps are longer, their time is unattributed; steps are still counted and timed",
                    is_error=False,
                )
        elif self.parked is not None and cost_ns + self.device_ns <= most_ns * RETURN_SHARE:
            recorder.set_device(recorder.device or self.parked)
            self.parked = None
            self.last_device_ns = getattr(recorder.device, "cost_ns", 0)
            self.costs_ns.clear()

    def switch_phases(self, on: bool) -> None:
        """Turn phases on or off from here on."""
        recorder = self.recorder
        if recorder.phases_off is not on or recorder.words is None:
            return
        self.count_unmeasured()
        recorder.switch_phases(on)
        self.auto.count("phases_measured", on)
        self.costs_ns.clear()
