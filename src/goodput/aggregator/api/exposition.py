"""The aggregator's Prometheus series: the accounts of its runs, and its own state.

A finished run is exposed for KEPT_SECONDS more, so that its last values are scraped. A token for some runs gets those
runs' series only, without the aggregator's own. The text of thousands of runs takes seconds: other requests are served
in between, concurrent scrapes share one text, and a costly text is served again for as long as it took to make.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import generate_latest

from goodput import __version__
from goodput.access.tokens import EVERYTHING, Access
from goodput.account import FINAL_STATUSES, figures
from goodput.account.account import FACTORS, Account
from goodput.account.states import INDEX, STATES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.single_flight import SingleFlight
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.ingest.ingest import Ingest
from goodput.causes import explain
from goodput.metrics import Families
from goodput.wire import schema

KEPT_SECONDS = 900.0
RESTARTS_SHOWN = 16
AT_A_TIME_SECONDS = 0.005
# From this many ranks on a text is cached for as long as it took to make, and a second at least.
COSTLY_RANKS = 1024


class _Cached(NamedTuple):
    text: bytes
    until: float


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
        self._flights = SingleFlight()
        self._cached: dict[tuple[str, ...], _Cached] = {}  # by the runs that a token is for

    async def text(self, access: Access = EVERYTHING) -> bytes:
        """The series that `access` may see."""
        now, key = time.monotonic(), access.runs
        self._cached = {runs: cached for runs, cached in self._cached.items() if now < cached.until}
        if key in self._cached:
            return self._cached[key].text
        return await self._flights.run(key, lambda: self._render(access))

    async def _render(self, access: Access) -> bytes:
        families, began = Families("aggregator"), time.monotonic()
        last = began
        for _ in self._fill(families, access):
            if time.monotonic() - last > AT_A_TIME_SECONDS:
                await asyncio.sleep(0)
                last = time.monotonic()
        text = await asyncio.to_thread(generate_latest, _Scrape(families))
        if self._accounts.store.expected_sum >= COSTLY_RANKS:
            now = time.monotonic()
            self._cached[access.runs] = _Cached(text, now + max(now - began, 1.0))
        return text

    def families(self, access: Access) -> Families:
        families = Families("aggregator")
        for _ in self._fill(families, access):
            pass
        return families

    def _fill(self, families: Families, access: Access) -> Iterator[None]:
        """Add all series; yields after each run."""
        now_ns, clamped = self._clock_ns(), 0
        for name in filter(access.may, list(self._accounts.store.runs)):
            account = self._accounts.account(name)
            clamped += account.clamped
            yield
            if account.status in FINAL_STATUSES and now_ns - account.end_ns > KEPT_SECONDS * 1e9:
                continue
            self._add_run(families, account, now_ns)
        if access.is_of_all:
            self._add_self(families, clamped)
            _add_authentication(families, self._authenticator)

    def _add_run(self, families: Families, account: Account, now_ns: int) -> None:
        run = {"run": account.run}
        families.add("goodput_run_info", {**run, "device": account.device, "status": account.status}, 1)
        gpu_ns = account.gpu_ns()
        for state, ns in zip(STATES, gpu_ns, strict=True):
            families.add("goodput_gpu_seconds", {**run, "state": state}, ns / 1e9)
        for factor in FACTORS:
            ratio = account.ratio(factor)
            if ratio is not None:
                families.add(f"goodput_{factor}_ratio", run, ratio)
        wall = account.wall_gpu_ns()
        families.add("goodput_coverage_ratio", run, 1 - gpu_ns[INDEX["unobserved"]] / wall if wall else 1)
        families.add("goodput_steps", {**run, "kind": "kept"}, sum(r.kept_steps for r in account.ranks))
        families.add("goodput_steps", {**run, "kind": "lost"}, sum(r.lost_steps for r in account.ranks))
        families.add("goodput_restarts", run, len(account.restarts))
        families.add("goodput_stall_threshold_seconds", run, account.threshold_ns / 1e9)
        age_ns = max(now_ns - account.last_progress_ns, 0)
        families.add(
            "goodput_progress_age_seconds", run, 0 if account.status in FINAL_STATUSES else age_ns / 1e9
        )
        self._add_hang(families, account, now_ns)
        self._add_ranks(families, account, now_ns)
        self._add_health(families, run)
        if account.status not in FINAL_STATUSES:
            self._add_checkpoints(families, run, now_ns)
            gpus = sum(rank.devices for rank in account.ranks if rank.rank < account.world_size)
            families.add("goodput_run_gpus", run, gpus)
        _add_restarts(families, account)
        _add_figures(families, account)
        _add_straggler(families, account)
        for cause in explain(account):
            if cause["gain"] is not None:
                families.add("goodput_cause_gain_ratio", {**run, "state": cause["state"]}, cause["gain"])

    def _add_hang(self, families: Families, account: Account, now_ns: int) -> None:
        hang = self._accounts.hang(account.run, now_ns)
        families.add("goodput_hang_seconds", {"run": account.run}, hang.seconds if hang else 0)
        if hang and hang.culprit:
            who = hang.culprit
            labels = {"run": account.run, "rank": str(who.rank), "host": who.host, "phase": who.phase}
            families.add("goodput_hang_culprit_seconds", labels, who.seconds)

    def _add_ranks(self, families: Families, account: Account, now_ns: int) -> None:
        run = {"run": account.run}
        newest = [attempts[-1] for attempts in self._accounts.store.runs[account.run].by_rank().values()]
        alive = [attempt for attempt in newest if attempt.known_end_ns() is None]
        families.add("goodput_ranks", {**run, "kind": "expected"}, account.world_size)
        families.add("goodput_ranks", {**run, "kind": "observed"}, len(newest))
        families.add("goodput_ranks", {**run, "kind": "alive"}, len(alive))
        # After a restart of the aggregator only the rank's own clock is known, from the ledger, until its next push.
        oldest = min((attempt.received_ns or attempt.seen_ns for attempt in alive), default=now_ns)
        families.add("goodput_rank_last_report_age_seconds", run, max(now_ns - oldest, 0) / 1e9)

    def _add_checkpoints(self, families: Families, run: dict[str, str], now_ns: int) -> None:
        times = self._accounts.store.checkpoints.get(run["run"])
        age = times.age_seconds(now_ns) if times else None
        if times is None or age is None:
            return
        families.add("goodput_checkpoint_age_seconds", run, age)
        interval = times.interval_seconds()
        if interval is not None:
            families.add("goodput_checkpoint_interval_seconds", run, interval)
        if times.save_ns is not None:
            families.add("goodput_checkpoint_last_save_seconds", run, times.save_ns / 1e9)

    def _add_health(self, families: Families, run: dict[str, str]) -> None:
        events, spent_ns = self._health.counted(run["run"])
        for (kind, severity), count in sorted(events.items()):
            families.add("goodput_run_health_events", {**run, "kind": kind, "severity": severity}, count)
        for kind, ns in sorted(spent_ns.items()):
            families.add("goodput_run_health_cost_gpu_seconds", {**run, "kind": kind}, ns / 1e9)

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


def _add_figures(families: Families, account: Account) -> None:
    """Figures derived from the account's sums; unknown ones are absent."""
    run = {"run": account.run}
    kept = sum(rank.kept_samples for rank in account.ranks)
    families.add("goodput_run_samples", {**run, "kind": "kept"}, kept)
    families.add("goodput_run_samples", {**run, "kind": "lost"}, max(account.samples - kept, 0))
    families.add("goodput_input_errors", run, len(figures.input_errors(account)))
    saving, bubble = figures.checkpoints(account), figures.pipeline(account) or {}
    single = {
        "goodput_throughput_goodput_ratio": figures.throughput(account)["goodput"],
        "goodput_checkpoint_save_seconds": saving["save_seconds"],
        "goodput_checkpoint_best_interval_seconds": saving["best_interval_seconds"],
    }
    for name, value in single.items():
        if value is not None:
            families.add(name, run, value)
    for kind, value in (("measured", bubble.get("bubble")), ("ideal", bubble.get("ideal_bubble"))):
        if value is not None:
            families.add("goodput_pipeline_bubble_ratio", {**run, "kind": kind}, value)
    spent = {
        "goodput_cost_dollars": figures.money(account),
        "goodput_energy_joules": figures.energy(account),
    }
    for name, total in spent.items():
        for state, value in (total or {"states": {}})["states"].items():
            if value is not None:
                families.add(name, {**run, "state": state}, value)


def _add_restarts(families: Families, account: Account) -> None:
    for restart in account.restarts[-RESTARTS_SHOWN:]:
        labels = {"run": account.run, "attempt": str(restart.attempt)}
        families.add("goodput_restart_timestamp_seconds", labels, restart.time_ns / 1e9)
        families.add("goodput_restart_lost_gpu_seconds", labels, restart.lost_gpu_ns / 1e9)
        if restart.devices:
            down_seconds = restart.down_gpu_ns / restart.devices / 1e9
            families.add("goodput_restart_down_seconds", labels, down_seconds)


def _add_straggler(families: Families, account: Account) -> None:
    run, straggler = {"run": account.run}, account.straggler
    slowdown = straggler.slowdown()
    if slowdown is not None:
        families.add("goodput_straggler_slowdown_ratio", run, slowdown)
    hosts = {rank.rank: rank.host for rank in account.ranks}
    for rank, share in straggler.shares():
        labels = {**run, "rank": str(rank), "host": hosts.get(rank, "")}
        families.add("goodput_straggler_share_ratio", labels, share)
    for host, share in straggler.host_shares():
        families.add("goodput_straggler_host_share_ratio", {**run, "host": host}, share)
