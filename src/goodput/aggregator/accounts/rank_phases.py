"""Where one rank's newest attempt spent its time by phase, beside the median of the ranks that it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from msgspec import Struct

from goodput.account.attempts import Attempt
from goodput.account.states import PHASE_STATES
from goodput.aggregator.ingest.store import Store
from goodput.slices import AT_A_TIME, Slices


class PhaseTime(Struct):
    """Seconds in a phase, its share of the attempt's time, and the median of that share over the ranks compared.

    `state` is what the account charges time of the phase to within steps.
    """

    phase: str
    state: str
    seconds: float
    share: float
    median_share: float


class RankPhases(Struct):
    """The phases of a rank's newest attempt as its page had them last, longest first; [] before the first report of it.

    `compared` counts the ranks of the same stage and group, this one included. `device` and `device_uuid` are what the
    rank declares, "" where it does not.
    """

    run: str
    rank: int
    attempt: int
    host: str
    stage: int | None
    device: str
    device_uuid: str
    compared: int
    phases: list[PhaseTime]


def rank_phases(store: Store, run: str, rank: int) -> Slices[RankPhases]:
    """Of a run of many ranks in slices. Raises KeyError for a run or rank that nobody reported."""
    own = store.newest[run][rank].attempt
    group, shares, own_shares = (own.stage, own.group_name()), [], _shares(own)
    for at, process in enumerate(list(store.newest[run].values())):
        if at % AT_A_TIME == 0:
            yield
        if (process.attempt.stage, process.attempt.group_name()) == group:
            found = _shares(process.attempt)
            shares += [found] if found else []
    whole_ns = sum(own.totals)
    return RankPhases(
        run=run,
        rank=rank,
        attempt=own.attempt,
        host=own.host,
        stage=own.stage,
        device=own.device,
        device_uuid=own.device_uuid,
        compared=len(shares),
        phases=[
            PhaseTime(
                phase, _state(own, phase), own_share * whole_ns / 1e9, own_share, _median(shares, phase)
            )
            for phase, own_share in sorted(own_shares.items(), key=lambda one: -one[1])
        ],
    )


def _shares(attempt: Attempt) -> dict[str, float]:
    """Of the time of an attempt by phase; {} where nothing is known of it."""
    whole = sum(attempt.totals)
    if not whole:
        return {}
    return {phase: ns / whole for phase, ns in zip(attempt.phases, attempt.totals, strict=False) if ns}


def _state(attempt: Attempt, phase: str) -> str:
    return PHASE_STATES.get(phase) or attempt.phase_states.get(phase) or "unattributed"


def _median(shares: Iterable[Mapping[str, float]], phase: str) -> float:
    return median(one.get(phase, 0.0) for one in shares)
