"""Starts deep looks if `GOODPUT_DEEP_LOOK` is set; otherwise imports and replaces nothing.

The user's own profilers are wrapped, so that a deep look ends before one begins: with two at a time torch crashes at
the end of the process.
"""

from __future__ import annotations

import os

MODULE = "torch"
RELIES_ON = """torch/profiler/profiler.py: profile(activities=...).start, stop, export_chrome_trace, without a schedule
no warm-up. torch/autograd/profiler.py: profile._prepare_trace is the first, profile.__exit__ the last call of a
profiler; _run_on_profiler_start is called by emit_nvtx and emit_itt too; profile.__exit__ synchronises
use_device. torch.autograd._profiler_enabled is per thread."""


def apply(torch, auto) -> None:
    setting = auto.session.environ.get("GOODPUT_DEEP_LOOK", "")
    if not setting.strip():
        return
    from goodput.sdk.automatic.deep_look import DeepLook, interval_ns

    every_ns = interval_ns(setting, auto.session.warn)
    if not every_ns:
        return
    look = auto.deep_look = DeepLook(auto, torch, every_ns, auto.session.environ)
    auto.after_step.append(look.after_step)
    auto.periodic.append(look.poll)
    auto.patches.undo(look.close)
    os.register_at_fork(before=look.cancel, after_in_child=look.after_fork)
    module, patches = torch.autograd.profiler, auto.patches
    prepare, end = module.profile._prepare_trace, module.profile.__exit__
    starts = module._run_on_profiler_start

    @patches.wrap("_prepare_trace", module.profile)
    def _prepare_trace(self, *args, **kwargs):
        if not look.own:
            look.cancel()
            look.users.add(self)
        return prepare(self, *args, **kwargs)

    @patches.wrap("__exit__", module.profile)
    def __exit__(self, *args, **kwargs):
        look.users.discard(self)
        return end(self, *args, **kwargs)

    @patches.wrap("_run_on_profiler_start", module)
    def _run_on_profiler_start():
        if not look.own:
            look.cancel()
        return starts()
