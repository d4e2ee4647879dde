"""Runs the loops of docs/frameworks.md as they stand there, for test_documented_loops.py.

argv is the directory and the section. What a loop calls of its framework is a stand-in that takes a known time.
"""

import re
import sys
import textwrap
import time

import support.frameworks.script_helpers as helpers
from support.core_wait import CoreWait
from support.paths import ROOT

import goodput

PAGE = ROOT / "docs" / "frameworks.md"
SECONDS = {"loader": 0.004, "forward": 0.006, "backward": 0.01, "communication": 0.003, "optimizer": 0.005}
spent = dict.fromkeys([*SECONDS, "checkpoint"], 0.0)


def code_of(section: str) -> str:
    """The code of a section: its indented lines."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)[1]
    return textwrap.dedent(
        "\n".join(line for line in text.splitlines() if line.startswith("    ") or not line)
    )


def work(phase: str, result=None, seconds=None):
    began = time.perf_counter()
    time.sleep(seconds or SECONDS[phase])
    spent[phase] += time.perf_counter() - began
    return result


def batches():
    while True:
        yield work("loader", "batch")


class Engine:
    """Of DeepSpeed: it steps at the end of every third batch."""

    global_steps, dp_world_size = 4, 2
    train_batch_size, gradient_accumulation_steps = staticmethod(lambda: 12), staticmethod(lambda: 3)
    load_checkpoint = staticmethod(lambda where: ("checkpoints/4", {}))
    save_checkpoint = staticmethod(lambda where: work("checkpoint", seconds=0.01))

    def __call__(self, batch):
        return work("forward")

    def backward(self, loss):
        work("backward")

    def step(self):
        work("optimizer")


def schedule(forward_step, data, model, microbatches, names) -> list:
    """Of Megatron: forward and backward pass of each micro-batch, each with its neighbours."""
    for _ in range(microbatches):
        forward_step(data, model)
        names["send_forward_recv_backward"]()
        work("backward")
    return []


def main():
    names, waited = {"goodput": goodput}, CoreWait()
    if sys.argv[2] == "DeepSpeed":
        goodput.start(run="loop")
        exec(code_of("DeepSpeed").replace("1000 == 999", "4 == 3"), names)
        names["train"](Engine(), batches(), 8)
    else:
        names.update(
            {
                "pipeline_rank": 1,
                "tensor_rank": 0,
                "microbatches": 3,
                "samples_per_rank": 6,
                "save_interval": 4,
            },
            plain_send_forward_recv_backward=lambda: work("communication"),
            batches=batches(),
            model=lambda batch: work("forward"),
            finalize_model_grads=lambda model: work("communication"),
            optimizer=type("", (), {"step": lambda self: work("optimizer")})(),
            save_checkpoint=lambda *_: work("checkpoint", seconds=0.01),
            forward_backward_func=lambda *arguments: schedule(*arguments, names),
        )
        exec(code_of("Megatron-style loops"), names)
        goodput.resumed(3)
        names["train"](4, 8)
    goodput.stop()
    helpers.print_result(spent=spent, core_wait=waited.seconds())


if __name__ == "__main__":
    main()
