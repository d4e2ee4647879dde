"""What automatic instrumentation costs a training step on a GPU, beside the bare loop and TraceML.

    python -m bench.trainer.gpu_training [--rounds 5] [--loops NAME ...] [--json]

In one process the bare loop, goodput automatic and the bare loop again take turns in blocks of steps, each of which
begins and ends with the device idle; in another one, started by `traceml run`, so do the bare loop and TraceML, if it
is installed. A figure is the time of a block by its steps; a ratio is to the bare block of the same turn, and of that
the median over all turns, with its quartiles; `again` shows what a ratio of the same loop is good for. Three loops: a small network, whose launches take the
host longer than its kernels take the device, a transformer in bfloat16, and the same compiled with CUDA graphs. Beside
the time the CPU of the training thread, since a host that launches ahead hides what it spends.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

SECONDS = 0.5  # of a block
TURNS = 4
SETTLING = 20  # steps of a block that are not timed
LOOPS = ("small network", "transformer", "transformer, CUDA graphs")


class Loop:
    """A model on the GPU with its optimizer and batches in pinned memory."""

    def __init__(self, torch, name: str):
        self.torch = torch
        torch.manual_seed(0)
        self.tokens = name != "small network"
        model = self._transformer() if self.tokens else self._small()
        self.model = model.cuda()
        self.called = torch.compile(self.model, mode="reduce-overhead") if "graphs" in name else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.batch = (torch.randn(8, 1024, 768) if self.tokens else torch.randn(64, 512)).pin_memory()

    def _small(self):
        nn = self.torch.nn
        return nn.Sequential(*(each for _ in range(6) for each in (nn.Linear(512, 512), nn.ReLU())))

    def _transformer(self):
        nn = self.torch.nn
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)

    def batches(self, steps: int) -> Iterable[Any]:
        return self.torch.utils.data.DataLoader([self.batch] * steps, batch_size=None)

    def step(self, batch) -> None:
        torch = self.torch
        batch = batch.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.tokens):
            loss = self.called(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bare(self, steps: int) -> tuple[float, float]:
        """(seconds, CPU seconds of this thread) of a step, after those that settle."""
        return self._timed(steps, self.step)

    def _timed(self, steps: int, step: Callable[[Any], None]) -> tuple[float, float]:
        began = cpu = 0.0
        for number, batch in enumerate(self.batches(steps + SETTLING)):
            if number == SETTLING:
                self.torch.cuda.synchronize()
                began, cpu = time.perf_counter(), time.thread_time()
            step(batch)
        spent = time.thread_time() - cpu
        self.torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps, spent / steps

    again = bare

    def auto(self, steps: int) -> tuple[float, float]:
        import goodput.auto

        goodput.auto.install()
        try:
            return self._timed(steps, self.step)
        finally:
            goodput.auto.remove()

    def traceml(self, steps: int) -> tuple[float, float]:
        import traceml_ai

        def step(batch) -> None:
            with traceml_ai.trace_step(self.model):
                self.step(batch)

        return self._timed(steps, step)


def measure(torch, name: str, rounds: int, modes: list[str]) -> dict[str, Any]:
    loop = Loop(torch, name)
    loop.bare(60)
    steps = max(int(SECONDS / loop.bare(50)[0]), 20)
    turns: list[dict[str, tuple[float, float]]] = []
    for turn in range(TURNS * rounds):
        # Every mode as often in every place.
        at = turn % len(modes)
        turns.append({mode: getattr(loop, mode)(steps) for mode in modes[at:] + modes[:at]})
    found: dict[str, Any] = {}
    for mode in modes:
        ratios = [turn[mode][0] / turn["bare"][0] for turn in turns]
        low, middle, high = quantiles(ratios, n=4)
        found[mode] = {
            "steps": steps * len(turns),
            "ms": 1e3 * median(turn[mode][0] for turn in turns),
            "cpu_ms": 1e3 * median(turn[mode][1] for turn in turns),
            "ratio": middle,
            "ratio_quartiles": [low, high],
        }
    return found


def inner(mode: str, loops: list[str], rounds: int, output: str) -> int:
    """Measure one way of instrumentation in this process, and write the figures."""
    import torch

    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in loops:
        print(f"{mode}: {name} ...", file=sys.stderr, flush=True)
        found[name] = measure(torch, name, rounds, ["bare", mode, "again"])
    Path(output).write_text(json.dumps(found))
    return 0


def run(mode: str, loops: list[str], rounds: int) -> dict[str, Any]:
    """The figures of a process of its own; TraceML's is started by `traceml run`."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "found.json"
        arguments = ["--inner", mode, str(output), "--rounds", str(rounds), "--loops", *loops]
        command = [sys.executable, __file__, *arguments]
        if mode == "traceml":
            tool = shutil.which("traceml", path=os.path.dirname(sys.executable)) or "traceml"
            command = [tool, "run", "--logs-dir", directory, __file__, "--args", *arguments]
        environ = {**os.environ, "GOODPUT_DIR": directory, "GOODPUT_RUN": "bench"}
        done = subprocess.run(command, env=environ, cwd=directory, stdout=subprocess.DEVNULL, timeout=1800)
        if not output.exists():
            raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}, and no figures")
        return json.loads(output.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: python -m bench.trainer.gpu_training --json"
    )
    parser.add_argument("--rounds", type=int, default=5, help=f"of {TURNS} turns each (default: %(default)s)")
    parser.add_argument("--loops", choices=LOOPS, nargs="+", default=list(LOOPS), help="these loops alone")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--inner", nargs=2, metavar=("MODE", "OUTPUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        return inner(arguments.inner[0], arguments.loops, arguments.rounds, arguments.inner[1])
    if not os.path.exists("/dev/nvidiactl"):
        print("bench.trainer.gpu_training: no NVIDIA GPU here", file=sys.stderr)
        return 1
    modes = ["auto", "traceml"] if importlib.util.find_spec("traceml_ai") else ["auto"]
    found = {mode: run(mode, arguments.loops, arguments.rounds) for mode in modes}
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"{found['auto']['device']}, PyTorch {found['auto']['torch']}")
    for name in arguments.loops:
        print(f"\n{name}\n  {'':22}{'steps':>7}{'ms':>9}{'CPU ms':>9}{'ratio':>9}   quartiles")
        for mode in modes:
            for kind, row in found[mode][name].items():
                low, high = row["ratio_quartiles"]
                label = kind if kind == mode else f"{kind}, beside {mode}"
                print(
                    f"  {label:22}{row['steps']:7}{row['ms']:9.3f}{row['cpu_ms']:9.3f}{row['ratio']:9.4f}",
                    end="",
                )
                print(f"   {low:.4f} to {high:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
