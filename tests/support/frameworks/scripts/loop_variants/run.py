"""Runs unusual training loops with goodput.auto, for test_loop_variants.py.

argv is the file to write. The JSON has, for each loop, what it expects and what its page shows: steps, seconds by
phase, events, drops, and by how many ns the totals differ from the elapsed time.
"""

import gc
import json
import sys
import time
import warnings

import torch
import torch._dynamo
from support.core_wait import CoreWait
from support.frameworks.scripts.loop_variants import (
    checkpoints,
    evaluation,
    exceptions,
    fetches,
    gaps,
    optimizers,
    places,
    rollouts,
)
from support.frameworks.scripts.loop_variants.cases import CASES

warnings.simplefilter("error")
import goodput.auto  # noqa: E402
from goodput.rank_page.reader import Reader  # noqa: E402

# Imported for their cases.
assert all((checkpoints, evaluation, exceptions, fetches, gaps, optimizers, places, rollouts))


def state() -> dict:
    """The page's counts at this moment."""
    recorder, writer = goodput._session.recorder, goodput._session.writer
    if writer is None:
        return {"steps": 0, "totals": {}, "events": [], "drops": 0, "off": 0, "depth": 0}
    recorder.charge(time.perf_counter_ns())
    found = Reader(writer.path, writer.fd).snapshot()
    return {
        "steps": found.steps_done,
        "totals": dict(zip(found.phases, found.totals, strict=False)),
        "events": [[event.kind, event.step] for event in found.events],
        "drops": sum(found.drops.values()),
        "off": found.last_ns - found.identity["start_mono_ns"] - sum(found.totals),
        "depth": recorder.depth,
    }


def measure_phases() -> None:
    """On a busy machine the plain hooks may have cost more than the short steps of a case before: its phases are off then."""
    recorder = goodput._session.recorder
    if recorder.phases_off:
        recorder.switch_phases(True)


def main() -> None:
    torch.set_num_threads(1)
    goodput.auto.remove()
    gc.freeze()  # Else each collection goes over all of PyTorch.
    report = {}
    for name in CASES:
        gc.collect()
        goodput.auto.install()
        measure_phases()
        before, waited = state(), CoreWait()
        expected = CASES[name]()
        open_phases = goodput._session.recorder.depth
        goodput.auto.remove()
        after = state()
        report[name] = {
            "expected": expected,
            "steps": after["steps"] - before["steps"],
            "seconds": {
                phase: (ns - before["totals"].get(phase, 0)) / 1e9 for phase, ns in after["totals"].items()
            },
            "events": after["events"][len(before["events"]) :],
            "drops": after["drops"] - before["drops"],
            "off": after["off"],
            "core_wait": waited.seconds(),
            "depth": [open_phases, after["depth"]],
        }
    with open(sys.argv[1], "w") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
