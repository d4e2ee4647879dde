"""Short accounts of the last 5 minutes, hour and day of a run, and of the whole of it, side by side."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from goodput.account import Account, figures
from goodput.account.account import FACTORS
from goodput.account.document_types import Factors, Steps
from goodput.account.states import STATES
from goodput.aggregator.accounts.past import Check, Past, account_of, never
from goodput.aggregator.ledger.ledger import Ledger
from goodput.causes import explain

ROLLING = (("5m", 300.0), ("1h", 3600.0), ("1d", 86_400.0))


class RollingWindow(Struct):
    """A short form of the account of a window that ends now."""

    name: str
    seconds: float
    start: float
    end: float
    gpu_seconds: float
    states: dict[str, float]
    factors: Factors
    steps: Steps
    leading_cause: str | None


class RollingWindows(Struct):
    """The last 5 minutes, hour and day of a run, and its lifetime."""

    run: str
    windows: list[RollingWindow]


def rolling_windows(ledger: Ledger, past: Past, whole: Account, check: Check = never) -> RollingWindows:
    """Those of a run whose account is `whole`, which also stands for windows that are not shorter than the run."""
    lifetime = short_form("lifetime", (whole.end_ns - whole.start_ns) / 1e9, whole)
    found = []
    for name, seconds in ROLLING:
        start_ns = whole.end_ns - int(seconds * 1e9)
        if start_ns > whole.start_ns:
            found.append(short_form(name, seconds, account_of(ledger, past, (start_ns, whole.end_ns), check)))
        else:
            found.append(replace(lifetime, name=name, seconds=seconds))
    return RollingWindows(whole.run, [*found, lifetime])


def short_form(name: str, seconds: float, account: Account) -> RollingWindow:
    """The account of a window of this name and length, the same figures as in its document."""
    return RollingWindow(
        *(name, seconds),
        start=account.start_ns / 1e9,
        end=account.end_ns / 1e9,
        gpu_seconds=account.wall_gpu_ns() / 1e9,
        states={state: ns / 1e9 for state, ns in zip(STATES, account.gpu_ns(), strict=True)},
        factors=Factors(**{factor: account.ratio(factor) for factor in FACTORS}),
        steps=Steps(
            kept=sum(account.of("kept_steps")),
            lost=sum(account.of("lost_steps")),
        ),
        leading_cause=next(iter(figures.advice_order(account, explain(account, advised=False))), None),
    )
