"""The series of one run: what follows from its account, and what its ranks do now."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from goodput.account import FINAL_STATUSES, Attempt, figures
from goodput.account.account import FACTORS, Account
from goodput.account.collective_verdict import LINKS_NAMED_MAX
from goodput.account.collectives import operation_sums
from goodput.account.document import slow_issue
from goodput.account.ranks import sum_gpu_ns
from goodput.account.states import INDEX, PHASE_STATES, STATES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.recent_stragglers import RecentStragglers
from goodput.aggregator.api.recent_links import RecentLinks
from goodput.aggregator.ingest.recent.recent_times import QUANTILES, STEP
from goodput.causes import explain
from goodput.defaults import BEFORE_FORWARD, ESTIMATED_LOADER, ESTIMATED_OPTIMIZER, PEERS
from goodput.histograms.native_histogram import NativeHistogram
from goodput.metrics import Families
from goodput.slices import Slices
from goodput.story.marks import Mark
from goodput.wire.operation_row import UNKNOWN

RESTARTS_SHOWN = 16
ROLES_SHOWN = 8
OPERATIONS_SHOWN = 16
STAGE_WAITS_SHOWN = 128  # of the first stages, in sends and in receives
# Series of phases that runs have named, of all runs together, at least one phase of each; and phases that we have named.
NAMED_PHASES_SHOWN = 8192
_OURS = {*PHASE_STATES, STEP, BEFORE_FORWARD, ESTIMATED_LOADER, ESTIMATED_OPTIMIZER, PEERS}
# Ranks and hosts of a run with series of their own: those that its other ranks waited for most.
RANKS_SHOWN = 16
MISSING_SHOWN, MISSING_NS = 5, 60 * 10**9
# For so long after a run has failed its GPUs count as allocated, unless its end was declared: its launcher may be about to
# start it again.
HELD_SECONDS = 900.0


class _Series:
    """Adds series of one run. Unknown values (None) are absent."""

    def __init__(self, families: Families, run: str):
        self._families, self._run = families, run

    def add(self, name: str, value: float | None, **labels: str) -> None:
        self._families.add(name, {"run": self._run, **labels}, value)

    def add_histogram(
        self, name: str, native: NativeHistogram, buckets: Sequence[tuple[str, int]] = (), **labels: str
    ) -> None:
        """The classic buckets are given without +Inf."""
        classic = [*buckets, ("+Inf", native.count)]
        self._families.add_histogram(name, {"run": self._run, **labels}, classic, native.sum_seconds, native)


class RunSeries:
    def __init__(self, accounts: Accounts, health: HealthCosts, ranks_shown: int = RANKS_SHOWN):
        self._accounts, self._health, self._ranks_shown = accounts, health, ranks_shown
        self._recent, self._links = RecentStragglers(), RecentLinks()
        self._named: dict[str, int] = {}  # phases that a run has named

    def used_share(self) -> float:
        """Phases of the run that has named most, as a share of those that have series; above 1 others have none."""
        return max(self._named.values(), default=0) / self._named_shown()

    def _named_shown(self) -> int:
        return max(NAMED_PHASES_SHOWN // max(len(self._accounts.store.runs), 1), 1)

    def keep(self, runs) -> None:
        """Forget all other runs."""
        self._named = {run: count for run, count in self._named.items() if run in runs}
        self._recent.keep(runs)
        self._links.keep(runs)

    def add_account(self, families: Families, account: Account) -> Slices[None]:
        """The series that change with the account alone. Yields after each part, which takes up to 30 us per rank."""
        series = _Series(families, account.run)
        for add in (_add_states, _add_collectives, _add_causes, _add_roles, _add_figures, _add_restarts):
            yield from add(series, account)
            yield
        for factor in FACTORS:
            series.add(f"goodput_{factor}_ratio", account.ratio(factor))
            yield
        _add_straggler(series, account, self._ranks_shown)

    def add_present(self, families: Families, account: Account, now_ns: int) -> Slices[None]:
        """The series that change with time too, or with events that the account does not have."""
        series = _Series(families, account.run)
        series.add("goodput_run_series_timestamp_seconds", now_ns / 1e9)
        self._add_recent_straggler(series, account, now_ns)
        yield
        self._add_slow_link(series, account, now_ns)
        yield
        self._add_health(series, account)
        yield
        yield from self._adding_present(series, account, now_ns)
        yield
        self._add_times(series, account.run, now_ns)

    def _add_recent_straggler(self, series: _Series, account: Account, now_ns: int) -> None:
        """The rank and stage that the account's rule names over the last minutes, for the alerts."""
        recent = self._recent.of(account.run, now_ns, account.straggler)
        rank = None if recent is None else recent.slow_rank()
        if recent is not None and rank is not None:
            host = account.hosts().get(rank, "")
            ratio = recent.slowness(rank)
            labels = {"rank": str(rank), "host": host, "phase": recent.slow_phase(rank) or ""}
            series.add("goodput_straggler_culprit_slowness_ratio", ratio, **labels)
        stage = None if recent is None else recent.culprit_stage()
        if recent is not None and stage is not None:
            ratio = recent.stage_slowness(stage)
            labels = {"stage": str(stage), "phase": recent.slow_stage_phase(stage) or ""}
            series.add("goodput_straggler_stage_slowness_ratio", ratio, **labels)

    def _add_slow_link(self, series: _Series, account: Account, now_ns: int) -> None:
        """The rank whose link is slow now, with the rate of its slowest flow and of others."""
        if account.status != "running":
            return
        processes = self._accounts.store.newest.get(account.run, {})
        link = self._links.of(account.run, now_ns, processes.values())
        if link is not None:
            labels = {"rank": str(link.rank), "host": link.host, "address": link.address}
            for of, rate in (("link", link.worst.bytes_per_second), ("others", link.usual)):
                series.add("goodput_straggler_slow_link_bytes_per_second", rate, of=of, **labels)

    def _adding_present(self, series: _Series, account: Account, now_ns: int) -> Slices[None]:
        """What the run's ranks do now."""
        newest = [process.attempt for process in self._accounts.store.newest[account.run].values()]
        yield
        is_final = account.status in FINAL_STATUSES
        alive = [attempt for attempt in newest if attempt.known_end_ns() is None and not is_final]
        yield
        series.add("goodput_ranks", account.world_size, kind="expected")
        series.add("goodput_ranks", len(newest), kind="observed")
        series.add("goodput_ranks", len(alive), kind="alive")
        oldest_ns = min(map(self._accounts.received_ns, alive), default=now_ns)
        series.add("goodput_rank_last_report_age_seconds", max(now_ns - oldest_ns, 0) / 1e9)
        if not is_final:
            self._add_missing(series, account, newest, alive, now_ns)
        yield
        hang = yield from self._accounts.judging(account.run, now_ns, account)
        series.add("goodput_hang_seconds", hang.seconds if hang else 0)
        if hang and (culprit := hang.culprit):
            labels = {"rank": str(culprit.rank), "host": culprit.host, "phase": culprit.phase}
            series.add("goodput_hang_culprit_seconds", culprit.seconds, **labels)
        if hang and (found := hang.collective):
            group = found.group.description or found.group.name
            labels = {"kind": found.kind, "operation": found.operation, "group": group}
            series.add("goodput_hang_collective_seconds", found.seconds, **labels)
            # The newest of a link's faults of a kind comes first.
            for one in reversed(found.links[:LINKS_NAMED_MAX]):
                link = {"host": one.host, "device": one.device, "kind": one.kind}
                series.add("goodput_hang_link_timestamp_seconds", one.time_ns / 1e9, **link)
        age_seconds = 0 if is_final else max(now_ns - self._accounts.progress_ns(account), 0) / 1e9
        series.add("goodput_progress_age_seconds", age_seconds)
        series.add("goodput_run_reported_gpus", _reported_gpus(account, newest))
        is_held = account.may_restart and now_ns - account.end_ns <= HELD_SECONDS * 1e9
        if is_final and not is_held:
            return
        series.add("goodput_run_gpus", _expected_gpus(account))
        if is_final:
            return
        times = self._accounts.store.checkpoints.get(account.run)
        if times is not None and times.newest is not None:
            series.add("goodput_checkpoint_age_seconds", times.age_seconds(now_ns))
            series.add("goodput_checkpoint_interval_seconds", times.interval_seconds())
            save_seconds = None if times.save_ns is None else times.save_ns / 1e9
            series.add("goodput_checkpoint_last_save_seconds", save_seconds)

    def _add_missing(
        self,
        series: _Series,
        account: Account,
        newest: Sequence[Attempt],
        alive: Sequence[Attempt],
        now_ns: int,
    ) -> None:
        """The ranks that report nothing, the longest silent first, and with them those that never reported."""
        received = ((self._accounts.received_ns(one), one) for one in alive)
        missing = [(ns, one.rank, one.host) for ns, one in received if now_ns - ns > MISSING_NS]
        if len(newest) < account.world_size and now_ns - account.start_ns > MISSING_NS:
            seen = {one.rank for one in newest}
            never = (rank for rank in range(account.world_size) if rank not in seen)
            missing += [(account.start_ns, rank, "") for rank in itertools.islice(never, MISSING_SHOWN)]
        for ns, rank, host in heapq.nsmallest(MISSING_SHOWN, missing):
            labels = {"rank": str(rank), "host": host}
            series.add("goodput_rank_missing_seconds", (now_ns - ns) / 1e9, **labels)

    def _add_times(self, series: _Series, run: str, now_ns: int) -> None:
        """Quantiles of the step and of each phase over the last minutes, and histograms of all."""
        times = self._accounts.store.recent.get(run)
        if times is None:
            return
        histograms = times.histograms()
        named = [phase for phase in histograms if phase not in _OURS]
        self._named[run] = len(named)
        hidden = set(named[self._named_shown() :])
        for phase, found in histograms.items():
            if phase in hidden:
                continue
            if phase == STEP:
                series.add_histogram("goodput_run_step_duration_seconds", found.native, found.buckets)
            else:
                series.add_histogram("goodput_run_phase_duration_seconds", found.native, phase=phase)
        for phase, seconds in times.quantiles(now_ns).items():
            if phase in hidden:
                continue
            for q, value in zip(QUANTILES, seconds, strict=True):
                if phase == STEP:
                    series.add("goodput_run_step_seconds", value, q=q)
                else:
                    series.add("goodput_run_phase_seconds", value, phase=phase, q=q)

    def _add_health(self, series: _Series, account: Account) -> None:
        events, spent_ns = self._health.counted(account.run, account)
        for (kind, severity), count in sorted(events.items()):
            series.add("goodput_run_health_events", count, kind=kind, severity=severity)
        for kind, ns in sorted(spent_ns.items()):
            series.add("goodput_run_health_cost_gpu_seconds", ns / 1e9, kind=kind)


def add_events(families: Families, run: str, marks: Sequence[Mark]) -> None:
    """The settled events of the run's story."""
    series = _Series(families, run)
    for mark in marks:
        labels = {"kind": mark.kind, "title": mark.title, "cost": mark.cost, "claims": mark.claims}
        series.add("goodput_run_event_timestamp_seconds", mark.time, **labels)


def _reported_gpus(account: Account, newest: Sequence[Attempt]) -> int:
    """The devices of those expected ranks that have ever reported."""
    beyond = None if account.is_of_workers else account.world_size
    return sum([attempt.devices for attempt in newest if beyond is None or attempt.rank < beyond])


def _expected_gpus(account: Account) -> int:
    """The devices of the ranks that are expected now: of a run of workers, whose numbers have gaps, of all."""
    beyond = account.world_size
    return sum(
        devices * (count if account.is_of_workers else min(count, max(beyond - rank, 0)))
        for devices, count, rank in zip(*map(account.of, ("devices", "count", "rank")), strict=True)
    )


def _add_states(series: _Series, account: Account) -> Slices[None]:
    series.add("goodput_run_info", 1, device=account.device, status=account.status)
    gpu_ns, wall_ns = account.gpu_ns(), account.wall_gpu_ns()
    for state, ns in zip(STATES, gpu_ns, strict=True):
        series.add("goodput_gpu_seconds", ns / 1e9, state=state)
    yield
    series.add("goodput_coverage_ratio", 1 - gpu_ns[INDEX["unobserved"]] / wall_ns if wall_ns else 1)
    series.add("goodput_steps", sum(account.of("kept_steps")), kind="kept")
    series.add("goodput_steps", sum(account.of("lost_steps")), kind="lost")
    series.add("goodput_restarts", len(account.restarts))
    series.add("goodput_stall_threshold_seconds", account.threshold_ns / 1e9)


def _add_collectives(series: _Series, account: Account) -> Slices[None]:
    """Communication by process group and operation."""
    times = yield from account.summing_operations()
    ceiling_of = figures.bus_ceilings(account)
    for (group, operation), row in operation_sums.largest(times, OPERATIONS_SHOWN):
        labels = {"group": group, "operation": operation}
        undivided_ns = row.gpu_ns - row.skew_ns - row.transfer_ns
        if row.is_known:
            series.add("goodput_communication_gpu_seconds", row.gpu_ns / 1e9, **labels)
            for part, ns in (("skew", row.skew_ns), ("transfer", row.transfer_ns), ("unknown", undivided_ns)):
                series.add("goodput_communication_part_gpu_seconds", ns / 1e9, part=part, **labels)
        if row.hidden_ns != UNKNOWN:
            for bound, ns in (("low", row.hidden_ns), ("high", row.hidden_max_ns)):
                series.add("goodput_communication_hidden_gpu_seconds", ns / 1e9, bound=bound, **labels)
        rate = operation_sums.bus_rate_max(operation, row)
        series.add("goodput_communication_bus_bytes_per_second", rate, **labels)
        least = operation_sums.bus_rate_min(operation, row)
        series.add("goodput_communication_bus_min_bytes_per_second", least, **labels)
        if ceiling := ceiling_of(row):
            reach, source = ceiling
            series.add("goodput_communication_bus_ceiling_bytes_per_second", reach, source=source, **labels)


def _add_causes(series: _Series, account: Account) -> Slices[None]:
    causes = explain(account, advised=False)
    yield
    for cause in causes:
        series.add("goodput_cause_gain_ratio", cause["gain"], state=cause["state"])
        for bound, value in (("low", cause["gain_low"]), ("high", cause["gain_high"])):
            series.add("goodput_cause_gain_bound_ratio", value, state=cause["state"], bound=bound)
    for place, state in enumerate(figures.advice_order(account, causes), 1):
        series.add("goodput_cause_order", place, state=state)


def _add_roles(series: _Series, account: Account) -> Slices[None]:
    """The account of each role, where the run has several; roles are declared by ranks, so they are bounded."""
    for role, ranks in itertools.islice(account.by_role().items(), ROLES_SHOWN):
        for state, ns in zip(STATES, sum_gpu_ns(ranks), strict=True):
            series.add("goodput_role_gpu_seconds", ns / 1e9, role=role, state=state)
        yield


def _add_figures(series: _Series, account: Account) -> Slices[None]:
    """Figures derived from the account's sums."""
    kept = sum(account.of("kept_samples"))
    series.add("goodput_run_samples", kept, kind="kept")
    series.add("goodput_run_samples", max(account.samples - kept, 0), kind="lost")
    rate = figures.throughput(account)
    series.add("goodput_input_errors", len(figures.input_errors(account, rate)))
    series.add("goodput_throughput_goodput_ratio", rate["goodput"])
    yield
    saving, bubble = figures.checkpoints(account), figures.pipeline(account) or {}
    yield
    series.add("goodput_checkpoint_save_seconds", saving["save_seconds"])
    series.add("goodput_checkpoint_best_interval_seconds", saving["best_interval_seconds"])
    series.add("goodput_pipeline_bubble_ratio", bubble.get("bubble"), kind="measured")
    series.add("goodput_pipeline_bubble_ratio", bubble.get("ideal_bubble"), kind="ideal")
    waits = (yield from figures.summing_pipeline_waits(account, bubble.get("microbatches"))) if bubble else []
    for one in waits[:STAGE_WAITS_SHOWN]:
        labels = {"stage": str(one["stage"]), "operation": one["operation"]}
        series.add("goodput_pipeline_wait_seconds", one["step_seconds"], per="step", **labels)
        series.add("goodput_pipeline_wait_seconds", one["microbatch_seconds"], per="microbatch", **labels)
    for name, spent in (
        ("goodput_cost_dollars", figures.money(account)),
        ("goodput_energy_joules", figures.energy(account)),
    ):
        for state, value in (spent["states"] if spent else {}).items():
            series.add(name, value, state=state)
    yield


def _add_restarts(series: _Series, account: Account) -> Slices[None]:
    for restart in account.restarts[-RESTARTS_SHOWN:]:
        attempt = str(restart.attempt)
        series.add("goodput_restart_timestamp_seconds", restart.time_ns / 1e9, attempt=attempt)
        series.add("goodput_restart_lost_gpu_seconds", restart.lost_gpu_ns / 1e9, attempt=attempt)
        if restart.devices:
            down_seconds = restart.down_gpu_ns / restart.devices / 1e9
            series.add("goodput_restart_down_seconds", down_seconds, attempt=attempt)
        yield


def _add_straggler(series: _Series, account: Account, ranks_shown: int) -> None:
    series.add("goodput_straggler_slowdown_ratio", account.straggler.slowdown())
    if slow := slow_issue(account):
        labels = {name: str(slow[name]) for name in ("rank", "host", "group", "operation")}
        for of, name in (("rank", "seconds"), ("peers", "usual_seconds")):
            series.add("goodput_straggler_slow_issue_seconds", slow[name], of=of, **labels)
    hosts = account.hosts()
    for rank, share in account.straggler.shares()[:ranks_shown]:
        series.add("goodput_straggler_share_ratio", share, rank=str(rank), host=hosts.get(rank, ""))
    for host, share in account.straggler.host_shares()[:ranks_shown]:
        series.add("goodput_straggler_host_share_ratio", share, host=host)
