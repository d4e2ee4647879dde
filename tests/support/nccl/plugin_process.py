"""A living process that has loaded the profiler plugin, and calls it line by line.

with PluginProcess(built, pages, RANK="0", WORLD_SIZE="2") as process:
    process.do("context, mask = call.init(hash=1, size=2, rank=0)")
"""

from __future__ import annotations

import subprocess
import sys

from support.nccl.plugin_build import Built, environment
from support.paths import PYTHONPATH

CODE = """
import ctypes, os, sys
from support.nccl.tables import Table
call = Table(ctypes.CDLL(sys.argv[1]), int(sys.argv[2]))
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class PluginProcess:
    def __init__(self, built: Built, pages, version: int = 5, **given: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(built.plugin), str(version)],
            env=environment(pages, PYTHONPATH=PYTHONPATH, **given),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, line: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def issue(
        self, function: str = "AllReduce", count: int = 100, *, ends: bool = True, at_seconds: int = 0
    ) -> None:
        """A call of the newest communicator with one channel, which ends on the device after 2 s or not."""
        at_ns = at_seconds * 10**9 + 1000
        fields = f"func=b{function!r}, count={count}, datatype=b'ncclFloat32'"
        self.do(f"api = call.start(context, 'collApi', None, {fields}); call.stop(api)")
        self.do(f"work = call.start(context, 'coll', api, nChannels=1, {fields}); call.stop(work)")
        self.do(f"kernel = call.start(context, 'kernelCh', work, pTimer={at_ns})")
        if ends:
            self.do(f"call.state(kernel, 'KernelChStop', {at_ns + 2 * 10**9}); call.stop(kernel)")

    def send(self, size: int) -> None:
        """A transfer of the newest call."""
        self.do("operation = call.start(context, 'proxyOp', work, pid=os.getpid(), isSend=1)")
        self.do("step = call.start(context, 'proxyStep', operation)")
        for state in ("SendGPUWait", "SendPeerWait_v4", "SendWait"):
            self.do(f"call.state(step, {state!r}, {size})")
        self.do("call.stop(step); call.stop(operation)")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> PluginProcess:
        return self

    def __exit__(self, *_) -> None:
        self.kill()
