"""A page whose step records and device records are written word by word: what a reader may find at any moment.

forge.step(loader=10, forward=20, device=(0, 30)); forge.settle(1)
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from support.rank_page.page_maker import Rank

from goodput.rank_page import page
from goodput.rank_page.device_steps import apportion
from goodput.rank_page.reader import Reader

LOADER, FORWARD = page.PHASES.index("loader"), page.PHASES.index("forward")
ACTIVE, GAVE_UP = page.DEVICE_STATES.index("active"), page.DEVICE_STATES.index("gave up")
WIDTH = page.PHASE_SLOTS


@dataclass
class Forge:
    """A page whose words are written here: each step is 10 of loader, 20 of forward on the host."""

    rank: Rank
    now: int = 0
    host: list[int] = field(default_factory=lambda: [0] * WIDTH)
    outside: list[int] = field(default_factory=lambda: [0] * WIDTH)
    device: list[int] = field(default_factory=lambda: [0] * WIDTH)
    device_ns: int = 0
    steps: int = 0
    truth: dict[int, tuple] = field(default_factory=dict)

    def __post_init__(self):
        self.words = self.rank.words
        self.now = self.words[page.W_LAST]
        self.words[page.W_DEVICE_STATE] = ACTIVE

    def spend(self, phase: int, ns: int) -> None:
        self.host[phase] += ns
        self.now += ns
        self.words[page.W_TOTALS + phase] = self.host[phase]
        self.words[page.W_LAST] = self.now

    def step(
        self, loader: int = 10, forward: int = 20, between: int = 0, device: tuple | None = (0, 30)
    ) -> None:
        """One step; `device` is (loader, forward) on the device's clock, None for a step that has the host's."""
        self.spend(0, between)
        self.outside[0] += between
        began = self.now
        self.spend(LOADER, loader)
        self.spend(FORWARD, forward)
        self.steps = number = self.steps + 1
        at = page.W_STEP_RING + (number - 1) % page.STEP_RING * page.STEP_WORDS
        record = [number, number - 1 + page.STEP_BIAS, began, self.now, 0, *self.host, *self.outside]
        self.words[at : at + len(record)] = memoryview(array("Q", record))
        self.words[at + page.R_SEAL] = number
        self.words[page.W_STEPS] = number
        spent = (loader, forward) if device is None else apportion(loader + forward, device)
        self.device[0] += between
        self.device[LOADER] += spent[0]
        self.device[FORWARD] += spent[1]
        self.device_ns += 0 if device is None else loader + forward
        self.truth[number] = tuple(self.device), self.device_ns

    def settle(self, number: int) -> None:
        """The device clock gets as far as this step."""
        for n in range(max(self.words[page.W_DEVICE_DONE] + 1, 1), number + 1):
            self.put(n, *self.truth[n])

    def put(self, number: int, totals, device_ns: int) -> None:
        at = page.W_DEVICE_RING + (number - 1) % page.DEVICE_RING * page.DEVICE_WORDS
        record = [number, device_ns, *totals]
        self.words[at : at + len(record)] = memoryview(array("Q", record))
        self.words[at + page.D_SEAL] = number
        self.words[page.W_DEVICE_DONE] = number

    def reader(self) -> Reader:
        return Reader(str(self.rank.path))
