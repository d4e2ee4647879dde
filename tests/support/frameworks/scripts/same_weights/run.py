"""Runs each training without goodput.auto and with it, in one process, for test_same_weights.py.

argv is the file to write and `CASES` the names of the trainings. The JSON has, for each: whether both runs gave the
same bytes, what Dynamo counted in both, expected and measured steps, and warnings.
"""

import gc
import json
import os
import sys
import traceback
import warnings

import torch
import torch._dynamo.utils
from support.frameworks.scripts.same_weights import compiled_models, loaders, model_copies, plain_loops
from support.frameworks.scripts.same_weights.cases import CASES

import goodput.auto
from goodput.rank_page import page

assert all((compiled_models, loaders, model_copies, plain_loops))  # Imported for their cases.


def counted() -> dict:
    counters = torch._dynamo.utils.counters
    names = ("stats", "frames", "graph_break", "recompiles", "aot_autograd")
    return {name: dict(counters[name]) for name in names if counters[name]}


def once(function) -> tuple:
    """(result, Dynamo's counters, warnings)."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    gc.freeze()  # Else the next collection goes over all of PyTorch again.
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = function()
        except Exception:
            result = traceback.format_exc()
    return result, counted(), [str(each.message) for each in warned]


def main() -> None:
    torch.set_num_threads(1)
    goodput.auto.remove()
    recorder, report = goodput._session.recorder, {}
    for name in os.environ.get("CASES", "").split() or CASES:
        function, steps = CASES[name]
        plain = once(function)
        goodput.auto.install()
        before = max(recorder.steps, 0)
        timed = once(function)
        goodput.auto.remove()
        report[name] = {
            "same": plain[0] == timed[0] and isinstance(plain[0], list),
            "results": [each[0] if isinstance(each[0], str) else "" for each in (plain, timed)],
            "differ": [str(pair)[:300] for pair in zip(plain[0], timed[0], strict=False) if pair[0] != pair[1]][:3],
            "counted": [plain[1], timed[1]],
            "warned": [plain[2], timed[2]],
            "steps": [steps, recorder.steps - before],
            "depth": recorder.depth,
        }  # fmt: skip
    at = page.W_DROPS
    report["drops"] = dict(zip(page.DROPS, recorder.words[at : at + len(page.DROPS)].tolist(), strict=True))
    with open(sys.argv[1], "w") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
