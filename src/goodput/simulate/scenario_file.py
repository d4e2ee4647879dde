"""A scenario as people write it, in TOML or JSON: runs with attempts and faults, clocks, outages, lost reports.

Every field but those without a default may be left out; an unknown one is an error that says where it is. Times are
seconds from the beginning. `load` reads a file, `RunEntry.plan` gives what `run.SimulatedRun` takes.

    seconds = 900
    [[runs]]
    run = "llama"
    ranks = 16
    attempts = [{start = 5, end = 880, outcome = "finished"}]
    faults = [{kind = "backward", rank = 3, start = 200, end = 500, amount = 1.4}]
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from goodput.simulate.scenario import (
    FAULT_KINDS,
    HANG_KINDS,
    SLOW_KINDS,
    AttemptPlan,
    RunFault,
    RunPlan,
    Workload,
)
from goodput.simulate.steps import SHARES
from goodput.wire.health_kinds import HEALTH_KINDS

RANKS_MAX, SECONDS_MAX = 100_000, 7 * 86_400.0
# Of a file, of runs in it, of ranks of all runs together, and of entries of each other list.
BYTES_MAX, RUNS_MAX, ALL_RANKS_MAX, ENTRIES_MAX = 4 << 20, 1000, 2 * RANKS_MAX, 10_000
NUMBER_MAX = 1e9  # as seconds, that many ns fit into 64 bits
# Bounds of numbers by the name of their field; all others are from 0 to NUMBER_MAX.
BOUNDS = {
    "seconds": (0.0, SECONDS_MAX),
    "ranks": (0, RANKS_MAX),
    "seed": (0, 2**63 - 1),
    "ahead": (-NUMBER_MAX, NUMBER_MAX),
    "amount": (0, 1000),
    "step": (0.01, 3600),
    "noise": (0, 0.2),  # of a normal distribution around 1
    "checkpoint_noise": (0, 2),
    "sdk_share": (0, 0.5),
}
Outcome = Literal["finished", "failed", "killed"]
_Entry = TypeVar("_Entry")
_Entries = Annotated[list[_Entry], Meta(max_length=ENTRIES_MAX)]


class ScenarioError(ValueError):
    """A scenario that cannot be used; the text says what is wrong and where."""


class AttemptEntry(Struct, forbid_unknown_fields=True):
    """One start of a run. `ranks` may differ from the run's; `submit` is when a scheduler got it."""

    start: float
    end: float
    outcome: Outcome = "killed"
    ranks: int | None = None
    startup: float = 20.0
    restore: float = 10.0
    compile: float = 15.0
    submit: float | None = None
    skew: float = 0.0


class RunEntry(Struct, forbid_unknown_fields=True):
    run: str
    ranks: int
    attempts: _Entries[AttemptEntry]
    faults: _Entries[RunFault] = []
    workload: Workload = msgspec.field(default_factory=lambda: Workload(step=2.0))
    stages: int = 1
    microbatches: int = 8
    gpus_per_node: int = 8
    seed: int = 0

    def node(self, rank: int) -> str:
        return f"{self.run}-n{rank // self.gpus_per_node:03d}"

    def plan(self) -> RunPlan:
        plans = []
        for one in self.attempts:
            ranks = range(one.ranks or self.ranks)
            places = [(self.node(rank), rank % self.gpus_per_node) for rank in ranks]
            plans.append(
                AttemptPlan(
                    *(one.start, one.end, places, one.outcome, one.startup, one.restore, one.compile),
                    submit=one.submit,
                    skew=one.skew,
                )
            )
        return RunPlan(
            *(self.run, plans, self.workload, self.seed, self.faults),
            stages=self.stages,
            microbatches=self.microbatches,
            thinned=False,
        )


class ClockEntry(Struct, forbid_unknown_fields=True):
    """From `start` on, a node's clock is so far ahead; negative is behind."""

    node: str
    ahead: float
    start: float = 0.0


class OutageEntry(Struct, forbid_unknown_fields=True):
    """A node's agent does not reach the aggregator."""

    node: str
    start: float
    end: float


class HealthEntry(Struct, forbid_unknown_fields=True):
    """Something that happens to a node's hardware: a GPU by its index, or a link by its name."""

    node: str
    time: float
    kind: str
    severity: Literal["info", "warning", "critical"] = "warning"
    gpu: int | None = None
    link: str = ""
    code: int = 0
    name: str = ""


class Delivery(Struct, forbid_unknown_fields=True):
    """Shares of pushes: lost, whose answer is lost, repeated, and delivered after a later one."""

    lost: float = 0.0
    unanswered: float = 0.0
    repeated: float = 0.0
    late: float = 0.0


class ScenarioFile(Struct, forbid_unknown_fields=True):
    seconds: float
    runs: Annotated[list[RunEntry], Meta(max_length=RUNS_MAX)]
    seed: int = 0
    push_every: float = 10.0
    innocent: bool = False
    clocks: _Entries[ClockEntry] = []
    outages: _Entries[OutageEntry] = []
    health: _Entries[HealthEntry] = []
    delivery: Delivery = msgspec.field(default_factory=Delivery)


def load(path: str | Path) -> ScenarioFile:
    """The scenario in a TOML or JSON file, by its suffix. Raises ScenarioError."""
    path = Path(path)
    try:
        content = _read(path)
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
        scenario = decode(content, type=ScenarioFile)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except ImportError:
        raise ScenarioError(
            f"{path}: this Python has no TOML reader: write the scenario in JSON, or pip install tomli"
        ) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise ScenarioError(f"{path}: {error}") from None
    except RecursionError:
        raise ScenarioError(f"{path}: too deeply nested") from None
    try:
        check(scenario)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None
    return scenario


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise ScenarioError(f"more than {BYTES_MAX} bytes")
    return content


def check(scenario: ScenarioFile) -> None:
    """Raise ScenarioError for the first thing that cannot be."""
    _check_numbers(scenario, "")
    _require(scenario.seconds > 0, "seconds: above 0")
    _require(0 < scenario.push_every <= 25, f"push_every: 0 to 25 seconds, not {scenario.push_every:g}")
    _require(bool(scenario.runs), "runs: there is none")
    names = [one.run for one in scenario.runs]
    for at, run in enumerate(scenario.runs):
        where = f"runs[{at}] ({run.run!r})"
        _require(names.count(run.run) == 1, f"{where}: another run has this name")
        _check_run(run, scenario.seconds, where)
    ranks = sum(map(largest, scenario.runs))
    _require(ranks <= ALL_RANKS_MAX, f"runs: {ranks} ranks together, {ALL_RANKS_MAX} at most")
    nodes = {run.node(rank) for run in scenario.runs for rank in range(0, largest(run), run.gpus_per_node)}
    known = f"there are {', '.join(sorted(nodes)[:3])} …"
    for name in ("clocks", "outages", "health"):
        for at, entry in enumerate(getattr(scenario, name)):
            _require(entry.node in nodes, f"{name}[{at}]: no node {entry.node!r}; {known}")
    for at, outage in enumerate(scenario.outages):
        _require(outage.start < outage.end, f"outages[{at}]: from {outage.start:g} to {outage.end:g}")
    for at, event in enumerate(scenario.health):
        _check_health(scenario, event, f"health[{at}]")
    for name in ("lost", "unanswered", "repeated", "late"):
        share = getattr(scenario.delivery, name)
        _require(0 <= share <= 0.5, f"delivery.{name}: a share from 0 to 0.5, not {share:g}")


def _check_numbers(entry: Struct, where: str) -> None:
    for name in entry.__struct_fields__:
        value, here = getattr(entry, name), f"{where}{name}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            low, high = BOUNDS.get(name, (0, NUMBER_MAX))
            _require(low <= value <= high, f"{here}: {low:g} to {high:g}, not {value:g}")
        elif isinstance(value, Struct):
            _check_numbers(value, f"{here}.")
        elif isinstance(value, list):
            for at, one in enumerate(value):
                _check_numbers(one, f"{here}[{at}].")


def _check_health(scenario: ScenarioFile, event: HealthEntry, where: str) -> None:
    _require(event.kind in HEALTH_KINDS, f"{where}: kind {event.kind!r}, one of {', '.join(HEALTH_KINDS)}")
    _require(event.time <= scenario.seconds, f"{where}: at {event.time:g}, after the scenario")
    gpus = max(run.gpus_per_node for run in scenario.runs if event.node.startswith(f"{run.run}-n"))
    _require(event.gpu is None or event.gpu < gpus, f"{where}: gpu {event.gpu}, a node has {gpus}")


def largest(run: RunEntry) -> int:
    """The ranks of a run's largest attempt."""
    return max([run.ranks, *(one.ranks or run.ranks for one in run.attempts)])


def _check_run(run: RunEntry, seconds: float, where: str) -> None:
    _require(bool(run.run) and run.run.isprintable(), f"{where}: a run needs a printable name")
    _require(1 <= run.ranks <= RANKS_MAX, f"{where}: ranks: 1 to {RANKS_MAX}, not {run.ranks}")
    _require(run.gpus_per_node > 0 and run.microbatches > 0, f"{where}: gpus_per_node, microbatches: above 0")
    _require(bool(run.attempts), f"{where}: attempts: there is none")
    before, fewest = 0.0, min(one.ranks or run.ranks for one in run.attempts)
    for at, one in enumerate(run.attempts):
        here, ranks = f"{where}.attempts[{at}]", one.ranks or run.ranks
        _require(
            before <= one.start < one.end, f"{here}: from {one.start:g} to {one.end:g}, after {before:g}"
        )
        _require(one.end <= seconds, f"{here}: ends at {one.end:g}, the scenario at {seconds:g}")
        _require(run.stages >= 1 and ranks % run.stages == 0, f"{here}: {ranks} ranks in {run.stages} stages")
        is_last = at == len(run.attempts) - 1
        _require(
            is_last or one.outcome != "finished", f"{here}: a run that has finished is not started again"
        )
        _require(one.skew < one.startup, f"{here}: skew {one.skew:g} is not below startup {one.startup:g}")
        before = one.end
    for at, fault in enumerate(run.faults):
        _check_fault(run, fault, fewest, f"{where}.faults[{at}]")


def _check_fault(run: RunEntry, fault: RunFault, ranks: int, where: str) -> None:
    """Check a fault of a run whose smallest attempt has so many ranks."""
    _require(fault.kind in FAULT_KINDS, f"{where}: kind {fault.kind!r}, one of {', '.join(FAULT_KINDS)}")
    _require(fault.start < fault.end, f"{where}: from {fault.start:g} to {fault.end:g}")
    if fault.rank is not None:
        _require(0 <= fault.rank < ranks, f"{where}: rank {fault.rank}, there are {ranks}")
    if fault.stage is not None:
        _require(run.stages > 1, f"{where}: stage {fault.stage} of a run without stages")
        _require(0 <= fault.stage < run.stages, f"{where}: stage {fault.stage}, there are {run.stages}")
        _require(fault.kind in SLOW_KINDS, f"{where}: {fault.kind} of a stage; of {', '.join(SLOW_KINDS)}")
    if fault.kind in HANG_KINDS and fault.kind != "network":
        _require(fault.rank is not None, f"{where}: {fault.kind} needs a rank")
    if fault.kind == "hang":
        _require(fault.phase in SHARES, f"{where}: phase {fault.phase!r}, one of {', '.join(SHARES)}")
    if fault.kind in ("death", "silence", "desync"):
        ends = [one.end for one in run.attempts]
        _require(fault.end in ends, f"{where}: {fault.kind} lasts until its attempt ends, at one of {ends}")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ScenarioError(problem)
