"""Why GPUs waited: one cause per file, each found by the folder it lies in.

In: an Account. Out: the causes with time, largest first, each with its share of all GPU time, the gain that
removing it could bring at most, 1 / (1 - share), its price and one line of advice. A cause is a module with
`STATE`, a state of the account, and `advise(account) -> str`, and where that needs an account, `GENERAL`, what to say
without one. It does not know where the account came from.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from goodput.account import figures
from goodput.account.account import Account
from goodput.account.document_types import Cause
from goodput.account.states import INDEX


@functools.cache
def advisers() -> dict[str, object]:
    """The cause modules by the state they explain. The folder is looked at once; it is asked for at every scrape."""
    modules = (
        importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)
    )
    return {module.STATE: module for module in modules}


def general() -> dict[str, str]:
    """What to do about each state, in a line, where no account is at hand: on a dashboard."""
    found = advisers()
    return {state: getattr(one, "GENERAL", None) or one.advise(None) for state, one in found.items()}


def explain(account: Account) -> list[Cause]:
    """The causes of this account, as the document lists them."""
    gpu_ns, wall = account.gpu_ns(), account.wall_gpu_ns()
    dollars = figures.money(account)
    found: list[Cause] = []
    for state, module in advisers().items():
        ns = gpu_ns[INDEX[state]]
        if ns <= 0:
            continue
        share = ns / wall
        found.append(
            {
                "state": state,
                "share": share,
                "gpu_seconds": ns / 1e9,
                "gain": 1 / (1 - share) if share < 1 else None,
                "cost": None if dollars is None else dollars["states"][state],
                "advice": module.advise(account),
            }
        )
    return sorted(found, key=lambda cause: -cause["gpu_seconds"])
