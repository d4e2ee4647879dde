"""The aggregator's Prometheus series: the accounts of its runs, and its own state.

A finished run is exposed for KEPT_SECONDS more, so that its last values are scraped. A token for some runs gets those
runs' series only, without the aggregator's own. The text of thousands of runs takes seconds: other requests are served
in between, concurrent scrapes share one text, and a costly text is served again for as long as it took to make.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

from prometheus_client import generate_latest

from goodput import __version__
from goodput.access.tokens import EVERYTHING, Access
from goodput.account import FINAL_STATUSES, figures
from goodput.account.account import FACTORS, Account, sum_gpu_ns
from goodput.account.states import INDEX, STATES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.recent_stragglers import RecentStragglers
from goodput.aggregator.accounts.result_cache import ResultCache
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.ingest.ingest import Ingest
from goodput.causes import explain
from goodput.metrics import Families
from goodput.wire import schema

KEPT_SECONDS = 900.0
RESTARTS_SHOWN = 16
ROLES_SHOWN = 8
AT_A_TIME_SECONDS = 0.005
# From this many ranks on a text is cached for as long as it took to make, and a second at least.
COSTLY_RANKS = 1024


class _RunSeries:
    """Adds series of one run. Unknown values (None) are absent."""

    def __init__(self, families: Families, run: str):
        self._families, self._run = families, run

    def add(self, name: str, value: float | None, **labels: str) -> None:
        self._families.add(name, {"run": self._run, **labels}, value)


class Exposition:
    def __init__(
        self,
        accounts: Accounts,
        ingest: Ingest,
        health: HealthCosts,
        authenticator: RequestAuthenticator,
        clock_ns=time.time_ns,
    ):
        self._accounts, self._ingest, self._health, self._clock_ns = accounts, ingest, health, clock_ns
        self._authenticator = authenticator
        self._recent = RecentStragglers()
        self._cache = ResultCache(self._age_seconds)  # by the runs that a token is for

    async def text(self, access: Access = EVERYTHING) -> bytes:
        """The series that `access` may see."""
        return await self._cache.get(access.runs, lambda: self._render(access))

    def _age_seconds(self, took_seconds: float) -> float:
        return max(took_seconds, 1.0) if self._accounts.store.expected_sum >= COSTLY_RANKS else 0.0

    async def _render(self, access: Access) -> tuple[bytes, float]:
        families, began = Families("aggregator"), time.monotonic()
        last = began
        for _ in self._fill(families, access):
            if time.monotonic() - last > AT_A_TIME_SECONDS:
                await asyncio.sleep(0)
                last = time.monotonic()
        text = await asyncio.to_thread(generate_latest, _Scrape(families))
        return text, time.monotonic() - began

    def families(self, access: Access) -> Families:
        families = Families("aggregator")
        for _ in self._fill(families, access):
            pass
        return families

    def _fill(self, families: Families, access: Access) -> Iterator[None]:
        """Add all series; yields after each run."""
        now_ns, clamped = self._clock_ns(), 0
        self._recent.keep(self._accounts.store.runs)
        for name in filter(access.may, list(self._accounts.store.runs)):
            account = self._accounts.account(name)
            clamped += account.clamped
            yield
            if account.status in FINAL_STATUSES and now_ns - account.end_ns > KEPT_SECONDS * 1e9:
                continue
            series = _RunSeries(families, name)
            _add_account(series, account)
            _add_roles(series, account)
            _add_figures(series, account)
            _add_restarts(series, account)
            _add_straggler(series, account)
            self._add_recent_straggler(series, account, now_ns)
            self._add_health(series, name)
            self._add_present(series, account, now_ns)
        if access.is_of_all:
            self._add_self(families, clamped)
            _add_authentication(families, self._authenticator)

    def _add_recent_straggler(self, series: _RunSeries, account: Account, now_ns: int) -> None:
        """The rank and stage that the account's rule names over the last minutes, for the alerts."""
        recent = self._recent.of(account.run, now_ns, account.straggler)
        rank = None if recent is None else recent.slow_rank()
        if recent is not None and rank is not None:
            host = next((one.host for one in account.ranks if one.rank == rank), "")
            ratio = recent.slowness(rank)
            series.add("goodput_straggler_culprit_slowness_ratio", ratio, rank=str(rank), host=host)
        stage = None if recent is None else recent.culprit_stage()
        if recent is not None and stage is not None:
            ratio = recent.stage_slowness(stage)
            series.add("goodput_straggler_stage_slowness_ratio", ratio, stage=str(stage))

    def _add_present(self, series: _RunSeries, account: Account, now_ns: int) -> None:
        """What the run's ranks do now."""
        newest = [attempts[-1] for attempts in self._accounts.store.runs[account.run].by_rank().values()]
        alive = [attempt for attempt in newest if attempt.known_end_ns() is None]
        series.add("goodput_ranks", account.world_size, kind="expected")
        series.add("goodput_ranks", len(newest), kind="observed")
        series.add("goodput_ranks", len(alive), kind="alive")
        # After a restart of the aggregator only the rank's own clock is known, from the ledger, until its next push.
        oldest_ns = min((attempt.received_ns or attempt.seen_ns for attempt in alive), default=now_ns)
        series.add("goodput_rank_last_report_age_seconds", max(now_ns - oldest_ns, 0) / 1e9)
        hang = self._accounts.hang(account.run, now_ns)
        series.add("goodput_hang_seconds", hang.seconds if hang else 0)
        if hang and (culprit := hang.culprit):
            labels = {"rank": str(culprit.rank), "host": culprit.host, "phase": culprit.phase}
            series.add("goodput_hang_culprit_seconds", culprit.seconds, **labels)
        is_final = account.status in FINAL_STATUSES
        age_seconds = 0 if is_final else max(now_ns - account.last_progress_ns, 0) / 1e9
        series.add("goodput_progress_age_seconds", age_seconds)
        if is_final:
            return
        # Numbers of processes that have ended or are left out lie between those of the others.
        expected = account.ranks if account.is_of_workers else account.ranks[: account.world_size]
        gpus = sum(rank.devices for rank in expected)
        series.add("goodput_run_gpus", gpus)
        times = self._accounts.store.checkpoints.get(account.run)
        if times is not None and times.newest is not None:
            series.add("goodput_checkpoint_age_seconds", times.age_seconds(now_ns))
            series.add("goodput_checkpoint_interval_seconds", times.interval_seconds())
            save_seconds = None if times.save_ns is None else times.save_ns / 1e9
            series.add("goodput_checkpoint_last_save_seconds", save_seconds)

    def _add_health(self, series: _RunSeries, run: str) -> None:
        events, spent_ns = self._health.counted(run)
        for (kind, severity), count in sorted(events.items()):
            series.add("goodput_run_health_events", count, kind=kind, severity=severity)
        for kind, ns in sorted(spent_ns.items()):
            series.add("goodput_run_health_cost_gpu_seconds", ns / 1e9, kind=kind)

    def _add_self(self, families: Families, clamped: int) -> None:
        store, counts = self._accounts.store, self._ingest.counts
        families.add("goodput_aggregator_info", {"version": __version__}, 1)
        reports = {outcome: counts["report", outcome] for outcome in ("accepted", "malformed", "failed")}
        families.add_counts("goodput_aggregator_reports_total", "outcome", reports)
        rejections = {reason: counts["rejection", reason] for reason in schema.REJECTED_FOR}
        families.add_counts("goodput_aggregator_rank_rejections_total", "reason", rejections)
        rows = {"new": store.new, "repeated": store.repeated}
        families.add_counts("goodput_aggregator_rows_total", "kind", rows)
        families.add("goodput_aggregator_clamped_total", {"what": "row"}, clamped)
        families.add_counts("goodput_aggregator_stacks_total", "outcome", self._accounts.hangs.counts)
        families.add("goodput_aggregator_stack_samples_dropped_total", {}, store.sampled.dropped)
        events = self._ingest.health.counts
        dropped = {reason: events["dropped", reason] for reason in ("malformed", "time", "full", "scope")}
        families.add_counts("goodput_aggregator_health_dropped_total", "reason", dropped)
        for (kind, severity), count in sorted(events.items()):
            if kind != "dropped":
                labels = {"kind": kind, "severity": severity}
                families.add("goodput_aggregator_health_events_total", labels, count)
        families.add("goodput_aggregator_ingest_seconds_total", {}, self._ingest.seconds)
        families.add("goodput_aggregator_ledger_errors_total", {}, counts["ledger", "error"])
        families.add("goodput_aggregator_runs", {}, len(store.runs))
        families.add_process("goodput_aggregator")


class _Scrape:
    """A registry for prometheus_client's writer."""

    def __init__(self, families: Families):
        self.collect = families.__iter__


def _add_authentication(families: Families, authenticator: RequestAuthenticator) -> None:
    authenticator.metrics.collect(families)
    sessions, tokens, files = authenticator.sessions, authenticator.tokens, authenticator.reloaded_files
    families.add("goodput_aggregator_sessions", {}, len(sessions) if sessions else 0)
    for name, series in (("tokens", "token"), ("certificate", "tls")):
        errors, is_failing = (files[name].errors, files[name].is_failing) if name in files else (0, False)
        families.add(f"goodput_aggregator_{series}_reload_errors_total", {}, errors)
        families.add("goodput_aggregator_reload_failing", {"file": name}, int(is_failing))
    families.add_counts("goodput_aggregator_tokens", "scope", tokens.count_by_scope() if tokens else {})
    if tokens and (expiry := tokens.next_expiry()) is not None:
        families.add("goodput_aggregator_token_expiry_timestamp_seconds", {}, expiry)


def _add_account(series: _RunSeries, account: Account) -> None:
    series.add("goodput_run_info", 1, device=account.device, status=account.status)
    gpu_ns, wall_ns = account.gpu_ns(), account.wall_gpu_ns()
    for state, ns in zip(STATES, gpu_ns, strict=True):
        series.add("goodput_gpu_seconds", ns / 1e9, state=state)
    for factor in FACTORS:
        series.add(f"goodput_{factor}_ratio", account.ratio(factor))
    series.add("goodput_coverage_ratio", 1 - gpu_ns[INDEX["unobserved"]] / wall_ns if wall_ns else 1)
    series.add("goodput_steps", sum(rank.kept_steps for rank in account.ranks), kind="kept")
    series.add("goodput_steps", sum(rank.lost_steps for rank in account.ranks), kind="lost")
    series.add("goodput_restarts", len(account.restarts))
    series.add("goodput_stall_threshold_seconds", account.threshold_ns / 1e9)
    causes = explain(account)
    for cause in causes:
        series.add("goodput_cause_gain_ratio", cause["gain"], state=cause["state"])
    for place, state in enumerate(figures.advice_order(account, causes), 1):
        series.add("goodput_cause_order", place, state=state)


def _add_roles(series: _RunSeries, account: Account) -> None:
    """The account of each role, where the run has several; roles are declared by ranks, so they are bounded."""
    for role, ranks in itertools.islice(account.by_role().items(), ROLES_SHOWN):
        for state, ns in zip(STATES, sum_gpu_ns(ranks), strict=True):
            series.add("goodput_role_gpu_seconds", ns / 1e9, role=role, state=state)


def _add_figures(series: _RunSeries, account: Account) -> None:
    """Figures derived from the account's sums."""
    kept = sum(rank.kept_samples for rank in account.ranks)
    series.add("goodput_run_samples", kept, kind="kept")
    series.add("goodput_run_samples", max(account.samples - kept, 0), kind="lost")
    series.add("goodput_input_errors", len(figures.input_errors(account)))
    series.add("goodput_throughput_goodput_ratio", figures.throughput(account)["goodput"])
    saving, bubble = figures.checkpoints(account), figures.pipeline(account) or {}
    series.add("goodput_checkpoint_save_seconds", saving["save_seconds"])
    series.add("goodput_checkpoint_best_interval_seconds", saving["best_interval_seconds"])
    series.add("goodput_pipeline_bubble_ratio", bubble.get("bubble"), kind="measured")
    series.add("goodput_pipeline_bubble_ratio", bubble.get("ideal_bubble"), kind="ideal")
    for name, spent in (
        ("goodput_cost_dollars", figures.money(account)),
        ("goodput_energy_joules", figures.energy(account)),
    ):
        for state, value in (spent["states"] if spent else {}).items():
            series.add(name, value, state=state)


def _add_restarts(series: _RunSeries, account: Account) -> None:
    for restart in account.restarts[-RESTARTS_SHOWN:]:
        attempt = str(restart.attempt)
        series.add("goodput_restart_timestamp_seconds", restart.time_ns / 1e9, attempt=attempt)
        series.add("goodput_restart_lost_gpu_seconds", restart.lost_gpu_ns / 1e9, attempt=attempt)
        if restart.devices:
            down_seconds = restart.down_gpu_ns / restart.devices / 1e9
            series.add("goodput_restart_down_seconds", down_seconds, attempt=attempt)


def _add_straggler(series: _RunSeries, account: Account) -> None:
    series.add("goodput_straggler_slowdown_ratio", account.straggler.slowdown())
    hosts = {rank.rank: rank.host for rank in account.ranks}
    for rank, share in account.straggler.shares():
        series.add("goodput_straggler_share_ratio", share, rank=str(rank), host=hosts.get(rank, ""))
    for host, share in account.straggler.host_shares():
        series.add("goodput_straggler_host_share_ratio", share, host=host)
