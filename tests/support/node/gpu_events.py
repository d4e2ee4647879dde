"""A driver's samples with the events that the agent makes of them.

driver = watch(Amd(options), clock.unix_ns); sample = with_events(driver, driver.sample(True))
"""

from __future__ import annotations

import time
from typing import TypeVar
from weakref import WeakKeyDictionary

from goodput_exporters.collectors.gpus.damage import DamageMonitor
from goodput_exporters.gpu.sample import Sample

D = TypeVar("D")
_monitors: WeakKeyDictionary[object, DamageMonitor] = WeakKeyDictionary()


def watch(driver: D, unix_ns=time.time_ns) -> D:
    """The driver, with a monitor of its own."""
    _monitors[driver] = DamageMonitor(unix_ns)
    return driver


def with_events(driver, sample: Sample) -> Sample:
    return _monitors[driver].with_events(sample)
