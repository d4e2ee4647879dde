"""Every series of the catalogue at once, with values made up so that each expression of boards and rules has a sample.

In: the catalogue, and the expressions, whose selectors have the label values that are used. Out: `Cluster`, whose
node() and aggregator() give families as two exporters would. Nothing is well there: all that can be wrong is, and
everything that can count goes on counting. It does not know what the numbers mean; tests of values make up their own.
"""

from __future__ import annotations

import itertools
import re
import time

from support.servers.servers import expressions

from goodput.account.states import STATES
from goodput.histograms.histogram import LATENCY_BOUNDS
from goodput.metrics import CATALOGUE, Families

RUN = "r1"
RANKS = ("0", "1")
# Where labels of several series have to be the same, for joins.
VALUES = {
    "run": [RUN],
    "rank": list(RANKS),
    "state": list(STATES),
    "host": ["n0"],
    "gpu": ["GPU-0"],
    "gpu_uuid": ["GPU-0"],
    "pci": ["dev0"],
    "device": ["dev0", "dev1"],
    "phase": ["none", "loader", "forward", "backward", "communication"],
    "node": ["0"],
    "parent": [""],
    "status": ["running", "failed", "unobserved", "finished"],
}
UP_SCRAPES = 5
# More rows than a series could sensibly have: a bound on the products of labels.
ROWS_MAX = 3000


def requested() -> dict[tuple[str, str], set[str]]:
    """(series, label) and the values that some selector names, patterns of alternatives taken apart."""
    found: dict[tuple[str, str], set[str]] = {}
    for expression in expressions():
        for name, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}", expression.text):
            name = name if name in CATALOGUE else re.sub(r"_(bucket|sum|count)$", "", name)
            for label, text in re.findall(r'(\w+)\s*=~?\s*"([^"$]*)"', matchers):
                values = {one for one in text.split("|") if re.fullmatch(r"[\w.-]+", one)}
                found.setdefault((name, label), set()).update(values)
    return found


class Cluster:
    """Two ranks of one run on one node, and its aggregator; counters grow with the time since it was made."""

    def __init__(self):
        self._began = time.monotonic()
        self._asked = requested()
        self._scrapes = 0

    def node(self) -> Families:
        self._scrapes += 1
        return self._families("node")

    def aggregator(self) -> Families:
        return self._families("aggregator")

    def _families(self, exposer: str) -> Families:
        seconds = time.monotonic() - self._began
        families = Families(exposer)
        for metric in CATALOGUE.values():
            if metric.exposer != exposer:
                continue
            for at, labels in enumerate(self._rows(metric)):
                if metric.kind == "histogram":
                    count = int(20 * seconds)
                    buckets = [(str(bound), count if bound >= 0.1 else 0) for bound in LATENCY_BOUNDS]
                    families.add_histogram(metric.name, labels, [*buckets, ("+Inf", count)], 0.1 * count)
                else:
                    families.add(metric.name, labels, self._value(metric, seconds, at))
        return families

    def _rows(self, metric):
        choices = []
        for label in metric.labels:
            values = set(VALUES.get(label, [])) | self._asked.get((metric.name, label), set())
            if metric.name == "goodput_infiniband_state" and label == "state":
                values = {"down"}
            choices.append([(label, value) for value in sorted(values) or ["x"]])
        for row in itertools.islice(itertools.product(*choices), ROWS_MAX):
            yield dict(row)

    def _value(self, metric, seconds: float, at: int) -> float:
        """A counter's total, else a gauge that says that something is wrong; `at` is the number of the row."""
        special = {
            "goodput_gpu_seconds": 10 + seconds * (at + 1),
            "goodput_cost_dollars": 10 + seconds * (at + 1) / 1000,
            "goodput_mfu_ratio": 0.4,
            "goodput_goodput_ratio": 0.5,
            "goodput_availability_ratio": 0.8,
            "goodput_restarts": seconds // 2,
            "goodput_run_step_seconds": 1 + seconds // 12 % 2,
            "goodput_run_health_events": seconds // 2,
            "goodput_checkpoint_age_seconds": seconds % 2,
            "goodput_stall_threshold_seconds": 0.1,
            "goodput_run_gpus": 8,
            "goodput_filesystem_available_bytes": 0.2,
            "goodput_restart_timestamp_seconds": time.time(),
            "goodput_aggregator_series_timestamp_seconds": time.time(),
            "goodput_numa_device_node": 0,
            "goodput_cause_gain_ratio": 1.1,
            # Every second one goes down, having been up: one that never was has no cable.
            "goodput_infiniband_up": float(at % 2 == 0 or self._scrapes < UP_SCRAPES),
            "goodput_network_up": float(at % 2 == 0 or self._scrapes < UP_SCRAPES),
            # Writable at first: one that always was read-only is meant to be.
            "goodput_filesystem_readonly": float(self._scrapes >= UP_SCRAPES),
            "goodput_aggregator_token_expiry_timestamp_seconds": time.time() + 3600,
        }
        if metric.name in special:
            return special[metric.name]
        if metric.kind == "counter":
            return seconds * 0.01 * (at % 7 + 1)
        return 1.0
