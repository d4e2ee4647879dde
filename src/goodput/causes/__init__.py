"""Why GPUs were not productive, and what to do about it: one cause per file; every file of this folder is loaded.

A cause is a module with `STATE`, a state of the account, and `ADVICE`, one line; `advise(account) -> str`, where
there is one, gives advice that depends on the account. The gain is the speed-up that removing the cause brings: by replay
of the steps where these were at hand (`goodput.whatif`), else 1 / (1 - share), which is Amdahl's law where no rank waits
for another in that state.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from goodput.account import figures
from goodput.account.account import Account
from goodput.account.document_types import Cause
from goodput.account.states import INDEX
from goodput.causes import bubble


@functools.cache
def advisers() -> dict[str, ModuleType]:
    """The cause modules by state. Cached, since every scrape needs them."""
    modules = (
        importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)
    )
    return {module.STATE: module for module in modules}


def general() -> dict[str, str]:
    """One line of advice for each state, for a dashboard."""
    return {state: module.ADVICE for state, module in advisers().items()}


def explain(account: Account, advised: bool = True) -> list[Cause]:
    """The causes with time in this account, largest first. Without `advised` they have no advice, which takes longest."""
    gpu_ns, wall = account.gpu_ns(), account.wall_gpu_ns()
    dollars = figures.money(account)
    whole, gains = figures.whole_run(account), account.replayed
    found: list[Cause] = []
    for state, module in advisers().items():
        ns = gpu_ns[INDEX[state]]
        if ns <= 0:
            continue
        share, once = ns / wall, min(account.once[INDEX[state]], ns)
        by_share = 1 / (1 - share) if share < 1 else None
        replayed = gains.by_state.get(state) if gains else None
        full = figures.at_full_length(account, ns / 1e9, once / 1e9) if whole else None
        found.append(
            {
                "state": state,
                "share": share,
                "gpu_seconds": ns / 1e9,
                "gain": by_share if replayed is None else replayed.value,
                "gain_low": None if replayed is None else replayed.low,
                "gain_high": None if replayed is None else replayed.high,
                "gain_basis": "share" if replayed is None else "replay",
                "cost": None if dollars is None else dollars["states"][state],
                "advice": _advice(module, account) if advised else "",
                "once_gpu_seconds": once / 1e9,
                "avoidable_gpu_seconds": (ns - once) / 1e9 if state != bubble.STATE else 0.0,
                "whole_run_gpu_seconds": full,
                "whole_run_share": full / whole["gpu_seconds"] if full is not None and whole else None,
            }
        )
    return sorted(found, key=lambda cause: -cause["gpu_seconds"])


def _advice(module: ModuleType, account: Account) -> str:
    return module.advise(account) if hasattr(module, "advise") else module.ADVICE
