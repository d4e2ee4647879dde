"""What the aggregator's /metrics answers: the accounts of its runs, and its own state.

A finished run is exposed for KEPT_SECONDS more, so that its last values are scraped, and one that may be restarted until it
is marked as abandoned. A token for some runs gets those runs' series only, without the aggregator's own. The lines of each
run are kept; a refresh renders those of the runs that changed, in slices with other requests in between, in the formats
requested within FORMAT_SECONDS.
A small installation refreshes at each scrape. Where that takes more than SCRAPE_CPU_SECONDS, as with hundreds of runs,
scrapes get each run as it was rendered last, with the time of that, and refreshes take a quarter of a core. A large one
(accounts.LARGE_RANKS) refreshes in the background, and scrapes get the last text at once: every REFRESH_SECONDS, or a
twentieth of a core's time, up to a tenth where series would be older than REFRESH_SECONDS_MAX. Between two times it renders
runs whose ranks spend their time differently than before, in another twentieth at most. Where scrapes come regularly it does
so shortly before one, and where nobody reads anything every UNREAD_SECONDS.
"""

from __future__ import annotations

import asyncio
import gzip
import heapq
import logging
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from goodput import __version__
from goodput.access.tokens import EVERYTHING, Access
from goodput.account.account import Account, ReplayedGains
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.result_cache import SingleFlight
from goodput.aggregator.accounts.slices import CpuTime, in_slices
from goodput.aggregator.accounts.stories import Stories
from goodput.aggregator.api.run_series import RANKS_SHOWN, RunSeries, add_events
from goodput.aggregator.api.scrape_times import GONE_SECONDS, ScrapeTimes
from goodput.aggregator.clock import SteadyClock
from goodput.aggregator.http import limits
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.refused_rows import TABLES, RefusedRows
from goodput.aggregator.ledger.threads import NoThread, in_thread
from goodput.aggregator.memory_bound import MemoryBound, give_back_free_memory
from goodput.metrics import CATALOGUE, Families
from goodput.metrics.text_format import TextWriter
from goodput.metrics.writer import Rows, Writer
from goodput.otlp.settings import Samples
from goodput.slices import Slices, result_of
from goodput.wire import schema

log = logging.getLogger("goodput.aggregator")
KEPT_SECONDS = 900.0
REFRESH_SECONDS, REFRESH_SECONDS_MAX, UNREAD_SECONDS = 5.0, 10.0, 15.0
# By this part of the time between two refreshes one may come sooner, to be done at a scrape; it begins so long before that
# and as many times as long as the last one took.
SOONER, LEAD_SECONDS, LEAD_TIMES = 0.25, 0.5, 1.5
# For so long after the ranks of a run began to spend their time differently, its series are rendered every REFRESH_SECONDS,
# or so many times as long as it took.
CHANGED_SECONDS, CHANGED_TIMES = 20.0, 20
# A run that has no account yet gets one within so long, and the time that it takes.
FIRST_SECONDS = 1.0
# An older text is not served; that happens only where nothing was scraped while the installation was small.
AGE_SECONDS_MAX = 60.0
# A scrape waits for so much work of the first refreshes: some 0.8 s, since rendering holds the event loop for half of the
# time.
SCRAPE_CPU_SECONDS = 0.4
# A refresh that took more is not repeated before so many times as long has passed since it began.
COSTLY_TIMES = 4
TEXTS_MAX = 16
# Nodes with a series of their clock: those that are off most.
NODES_SHOWN = 1024
GZIP_LEVEL = 3
# A format that is not requested for so long is no longer rendered.
FORMAT_SECONDS = 300.0
Format = type[Writer]
Bodies = dict[Format, dict[str, Any]]  # by format and family


class Collected(Protocol):
    """What adds series of its own."""

    def collect(self, families: Families) -> None: ...


class _Key(NamedTuple):
    """What a text was requested for."""

    may_see: tuple[str, ...]
    runs: tuple[str, ...]
    format: Format


class _RunText(NamedTuple):
    """The series of one run."""

    account: Account
    gains: ReplayedGains | None  # which an account gets after it was computed
    of_account: Bodies
    present: Bodies
    counts: Counter[str]  # series by level
    present_counts: Counter[str]
    at_ns: int = 0  # when `present` was rendered, by the clock of the accounts
    at: float = 0.0  # the same by the monotonic clock


class _Text:
    """A text for a token's runs, as it is and, once requested, compressed."""

    def __init__(self, plain: bytes):
        self.plain = plain
        self.compressed: bytes | None = None


class Exposition:
    def __init__(
        self,
        accounts: Accounts,
        ingest: Ingest,
        health: HealthCosts,
        authenticator: RequestAuthenticator,
        memory: MemoryBound | None = None,
        clock_ns=time.time_ns,
        ranks_shown: int = RANKS_SHOWN,
        refused: RefusedRows | None = None,
    ):
        self._accounts, self._ingest, self._clock_ns = accounts, ingest, clock_ns
        self._authenticator, self._memory = authenticator, memory or MemoryBound()
        self._refused = refused or RefusedRows("")
        self._series = RunSeries(accounts, health, ranks_shown)
        self.stories: Stories | None = None  # without them runs have no events
        self._runs: dict[str, _RunText] = {}
        self._own: Bodies = {}
        self._always: Bodies = {}  # for every token
        self._formats: dict[Format, float] = {}  # when last requested, by the monotonic clock
        self._texts: dict[_Key, _Text] = {}  # the last used at the end
        self._refreshed: float | None = None  # by the monotonic clock
        self._took_seconds = self._cpu_seconds = 0.0  # by the last refresh
        self._changed_due = 0.0  # when runs that changed may be rendered again, by the monotonic clock
        self._scrapes = ScrapeTimes()
        self._flights = SingleFlight()
        self._began = 0.0  # when the last refresh did, by the monotonic clock
        self._has_used_up = asyncio.Event()  # whether the refresh under way has taken what a scrape waits for
        self._rendered_ns = 0  # when the series were computed, by `clock_ns`
        self.otlp: Collected | None = None  # the exporter of these series, for its own
        self.stream: Collected | None = None  # this aggregator as one of several

    async def text(
        self,
        access: Access = EVERYTHING,
        runs: tuple[str, ...] = (),
        compressed: bool = False,
        format: Format = TextWriter,
    ) -> bytes:
        """The series that `access` may see, of these runs or of all. Unknown runs have none."""
        key = _Key(access.runs, runs, format)
        await self._rendered(format, key)
        # Others take their place when runs are rendered anew, also while this one is assembled.
        texts = self._texts
        text = texts.pop(key, None) or await self._flights.run(
            (id(texts), key), lambda: self._assemble(access, runs, format)
        )
        texts[key] = text
        while len(texts) > TEXTS_MAX:
            del texts[next(iter(texts))]
        return text.plain if not compressed else await self._compressed(text)

    async def samples(self) -> Samples:
        """What `text` shows to a token for all runs: the aggregator's own series and those of each run."""
        await self._rendered(Rows, None)
        texts = [text for text in self._runs.values() if Rows in text.present]
        runs = [one[Rows] for text in texts for one in (text.of_account, text.present)]
        return Samples(self._rendered_ns, [self._own[Rows], self._always[Rows], *runs])

    async def _rendered(self, format: Format, scraper: _Key | None) -> None:
        """Ask for a format and wait until the series have it, and are fresh or a refresh takes long."""
        now = self._formats[format] = time.monotonic()
        self._scrapes.add(scraper, now)
        if self._must_wait():
            await self._refresh_within_budget()
        await self._have(format)

    async def _refresh_within_budget(self) -> None:
        """Refresh, and wait until that is done or has taken SCRAPE_CPU_SECONDS, not at all where the last one took more."""
        if not self._flights.has("refresh"):
            self._has_used_up.clear()
        done = asyncio.ensure_future(self._flights.run("refresh", self.refresh))
        if self._accounts.always_fresh:
            return await done
        if self._refreshed is None or not self._is_costly():
            used_up = asyncio.ensure_future(self._has_used_up.wait())
            await asyncio.wait({done, used_up}, return_when=asyncio.FIRST_COMPLETED)
            used_up.cancel()
        if done.done():
            return await done
        done.add_done_callback(_log_failure)  # The refresh goes on.
        # Some runs were rendered anew since these were made.
        self._texts = {}

    async def _have(self, format: Format) -> None:
        """Have a format rendered that was not requested before."""
        for _ in range(2):  # A refresh that is under way may have begun before it was requested.
            if format not in self._always:
                await self._refresh_within_budget()
        # Where no scrape waits until a refresh is done, runs have it from the next one on.
        while format not in self._always:
            await in_slices(self._refresh_own([*self._always, format]))

    async def keep_fresh(self) -> None:
        """Refresh the series of a large installation for ever; between two times compute what has no account yet, and refresh
        the runs of which the ranks began to spend their time differently."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, min(self._due(last) - time.monotonic(), FIRST_SECONDS)))
            is_due = time.monotonic() >= self._due(last)
            if self._accounts.is_large():
                try:
                    if is_due:
                        await self._flights.run("refresh", self.refresh)
                    else:
                        await in_slices(self._accounts.computing_first())
                        await self._refresh_changed(self._due(last))
                except Exception:
                    log.exception("the series could not be rendered; /metrics has the last ones")
            if is_due:
                last = time.monotonic()

    async def _refresh_changed(self, due: float) -> None:
        """Render the runs that changed, unless all are `due` soon."""
        now, changed = time.monotonic(), self._accounts.store.mixes.changed
        for run in [run for run, since in changed.items() if now - since > CHANGED_SECONDS]:
            del changed[run]
        is_due = now >= max(self._changed_due, (self._refreshed or now) + REFRESH_SECONDS)
        is_soon = due - now <= self._took_seconds
        if changed and is_due and not is_soon and not self._must_wait():
            await self._flights.run("refresh", partial(self._refresh_runs, list(changed)))

    async def _refresh_runs(self, names: list[str]) -> None:
        """Render some runs, in the formats that all have."""
        began, formats = time.monotonic(), list(self._always)
        try:
            found = await in_slices(self._render_runs(names, formats))
            self._runs = {name: found.get(name, text) for name, text in self._runs.items()} | found
            self._rendered_ns = self._clock_ns()
            await self._replace_texts(formats)
        finally:
            # Of this time it computed for half.
            spent = (time.monotonic() - began) / 2
            self._changed_due = time.monotonic() + max(REFRESH_SECONDS, CHANGED_TIMES * spent)

    def _due(self, last: float) -> float:
        """When to refresh in the background after the `last` refresh, by the monotonic clock."""
        if self._refreshed is None:
            return last + REFRESH_SECONDS
        now, wait = time.monotonic(), self._wait_seconds()
        due, unread = last + wait, last + max(wait, UNREAD_SECONDS)
        if now - self._accounts.last_read < GONE_SECONDS:
            return due
        lead = LEAD_SECONDS + LEAD_TIMES * self._took_seconds
        at_scrape = self._scrapes.next_due(now, due, SOONER * wait, lead)
        return unread if at_scrape is None else min(at_scrape, unread)

    def _wait_seconds(self) -> float:
        """Until the next refresh in the background, by what the last one cost."""
        most = max(REFRESH_SECONDS_MAX, 10 * self._cpu_seconds)
        return max(REFRESH_SECONDS, min(20 * self._cpu_seconds, most))

    def _must_wait(self) -> bool:
        if self._refreshed is None or self._accounts.always_fresh:
            return True
        now = time.monotonic()
        if not self._accounts.is_large():
            return not self._is_costly() or now - self._began >= COSTLY_TIMES * self._cpu_seconds
        return now - self._refreshed > self._age_seconds_max()

    def _is_costly(self) -> bool:
        """Whether the last refresh took more than a scrape waits for."""
        return self._cpu_seconds > SCRAPE_CPU_SECONDS

    def _age_seconds_max(self) -> float:
        """An older figure is not served."""
        return AGE_SECONDS_MAX + 20 * self._took_seconds

    async def refresh(self) -> None:
        """Render what has changed, and the texts that were requested since the last time."""
        began, spent = time.monotonic(), CpuTime(SCRAPE_CPU_SECONDS, self._has_used_up)
        self._began = began
        formats = [
            format for format, requested in self._formats.items() if began - requested <= FORMAT_SECONDS
        ]
        formats = formats or [TextWriter]
        self._series.keep(self._accounts.store.runs)
        if self.stories is not None:
            self.stories.keep(self._accounts.store.runs)
        if self._is_costly() or not set(formats).issubset(self._always):
            # For the scrapes that do not wait until all runs are rendered.
            await in_slices(spent.of(self._refresh_own(formats)))
        runs = await in_slices(spent.of(self._render_runs(self._oldest_first(), formats, self._runs)))
        self._runs = {name: runs[name] for name in self._accounts.store.runs if name in runs}
        await in_slices(spent.of(self._refresh_own(formats)))
        self._refreshed = time.monotonic()
        self._took_seconds, self._cpu_seconds = self._refreshed - began, spent.seconds
        await self._replace_texts(formats)
        if self._accounts.is_large():
            # An account's arrays lie between what stays: of ten thousand ranks 20 MiB, in 5 ms.
            with suppress(NoThread):
                await in_thread(give_back_free_memory)

    def _refresh_own(self, formats: list[Format]) -> Slices[None]:
        now_ns = self._clock_ns()
        self._own, self._always = yield from self._render_own(self._runs, now_ns, formats)
        self._rendered_ns = now_ns

    def _oldest_first(self) -> list[str]:
        """The runs in the order of their turns: where a scrape does not wait for all, those rendered longest ago are next."""
        at = {name: text.at for name, text in self._runs.items()}
        return sorted(self._accounts.store.runs, key=lambda name: at.get(name, 0.0))

    async def _replace_texts(self, formats: list[Format]) -> None:
        """Drop the texts of the series before; a large installation has those that were requested again at once."""
        requested, self._texts = self._texts, {}
        if self._accounts.is_large():
            for key, before in requested.items():
                if key.format in formats:
                    await self._assemble_again(key, before)

    # ---- Series

    def families(self, access: Access) -> Families:
        """All series that `access` may see."""
        families, now_ns = Families("aggregator"), self._clock_ns()
        self._series.keep(self._accounts.store.runs)
        for name in list(self._accounts.store.runs):
            account = self._accounts.account(name)
            if access.may(account.run) and _is_shown(account, now_ns):
                result_of(self._series.add_account(families, account))
                result_of(self._series.add_present(families, account, now_ns))
        if access.is_of_all:
            result_of(self._adding_self(families))
        return families

    def _render_runs(
        self, names: list[str], formats: list[Format], served: dict[str, _RunText] | None = None
    ) -> Slices[dict[str, _RunText]]:
        """Those of these runs that are shown, each at once in `served` too; yields between parts."""
        shown: dict[str, _RunText] = {}
        for name in names:
            yield
            if name not in self._accounts.store.runs:
                continue
            try:
                account = yield from self._accounts.computing(name)
            except KeyError:
                continue  # It was deleted meanwhile.
            if _is_shown(account, self._clock_ns()):
                try:
                    shown[name] = yield from self._render_run(account, formats)
                    if served is not None:
                        served[name] = shown[name]
                except KeyError:
                    if name in self._accounts.store.runs:
                        raise
        return shown

    def _render_run(self, account: Account, formats: list[Format]) -> Slices[_RunText]:
        """Raises KeyError if the run leaves memory meanwhile."""
        self._accounts.request_replay(account)
        if self.stories is not None:
            self.stories.request_seldom(account)
        before, gains = self._runs.get(account.run), account.replayed
        is_same = before is not None and before.account is account and before.gains is gains
        if before is None or not is_same or before.of_account.keys() != set(formats):
            families = Families("aggregator")
            yield from self._series.add_account(families, account)
            of_account = yield from _bodies(families, formats)
            before = _RunText(account, gains, of_account, {}, families.count_by_level(), Counter())
        families, now_ns, now = Families("aggregator"), self._clock_ns(), time.monotonic()
        yield from self._series.add_present(families, account, now_ns)
        if self.stories is not None:
            add_events(families, account.run, self.stories.marks(account.run))
        present = yield from _bodies(families, formats)
        counts = families.count_by_level()
        return before._replace(present=present, present_counts=counts, at_ns=now_ns, at=now)

    def computing_own(self) -> Slices[Families]:
        """The aggregator's series about itself, but for those about its series."""
        families = Families("aggregator")
        yield from self._adding_self(families)
        return families

    def _render_own(
        self, runs: dict[str, _RunText], now_ns: int, formats: list[Format]
    ) -> Slices[tuple[Bodies, Bodies]]:
        """The aggregator's own series, and those for every token."""
        families, always = (yield from self.computing_own()), Families("aggregator")
        counts = families.count_by_level()
        for text in runs.values():
            counts += text.counts + text.present_counts
        yield
        families.add_counts("goodput_aggregator_series", "level", counts)
        families.add("goodput_aggregator_series_render_seconds", {}, self._took_seconds)
        oldest_ns = min([text.at_ns for text in runs.values()], default=now_ns)
        always.add("goodput_aggregator_series_timestamp_seconds", {}, oldest_ns / 1e9)
        own = yield from _bodies(families, formats)
        return own, {format: format.bodies(always) for format in formats}

    # ---- Text

    async def _assemble(self, access: Access, runs: tuple[str, ...], format: Format) -> _Text:
        await self._have(format)  # A refresh may have ended since.
        found: list[Bodies] = [self._always]
        names = self._runs if not runs else [run for run in dict.fromkeys(runs) if run in self._runs]
        oldest = time.monotonic() - self._age_seconds_max()
        for text in map(self._runs.__getitem__, filter(access.may, names)):
            if format in text.present and text.at > oldest:
                found += (text.of_account, text.present)
        if access.is_of_all and not runs:
            found.append(self._own)
        out: list[bytes] = []
        await in_slices(joined(format, [one[format] for one in found], out))
        return _Text(b"".join(out))

    async def _assemble_again(self, key: _Key, before: _Text) -> None:
        text = await self._assemble(Access("", (), key.may_see), key.runs, key.format)
        if before.compressed is not None:
            await self._compressed(text)
        self._texts.setdefault(key, text)

    async def _compressed(self, text: _Text) -> bytes:
        if text.compressed is None:
            # zlib releases the interpreter's lock.
            text.compressed = await asyncio.to_thread(gzip.compress, text.plain, GZIP_LEVEL, mtime=0)
        return text.compressed

    # ---- The aggregator's own

    def _adding_self(self, families: Families) -> Slices[None]:
        store, counts = self._accounts.store, self._ingest.counts
        families.add("goodput_aggregator_info", {"version": __version__}, 1)
        reports = {outcome: counts["report", outcome] for outcome in ("accepted", "malformed", "failed")}
        families.add_counts("goodput_aggregator_reports_total", "outcome", reports)
        rejections = {reason: counts["rejection", reason] for reason in schema.REJECTED_FOR}
        families.add_counts("goodput_aggregator_rank_rejections_total", "reason", rejections)
        rows = {"new": store.new, "repeated": store.repeated}
        families.add_counts("goodput_aggregator_rows_total", "kind", rows)
        families.add("goodput_aggregator_clamped_total", {"what": "row"}, self._clamped())
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
        refused = {**dict.fromkeys(TABLES, 0), **self._refused.counts}
        families.add_counts("goodput_aggregator_ledger_refused_rows_total", "table", refused)
        for name in ("bytes", "runs_closed_total", "rows_thinned_total", "freed_bytes_total"):
            families.add(f"goodput_aggregator_ledger_{name}", {}, counts["ledger", name])
        compacted = {how: counts["ledger", f"blocks_{how}"] for how in ("merged", "thinned")}
        families.add_counts("goodput_aggregator_ledger_blocks_compacted_total", "how", compacted)
        families.add("goodput_aggregator_runs", {}, len(store.runs))
        families.add("goodput_aggregator_runs_stored", {}, len(store.stored))
        for what in ("ended", "full", "memory", "damaged", "loaded"):
            families.add("goodput_aggregator_runs_moved_total", {"why": what}, counts["runs", what])
        families.add("goodput_aggregator_memory_limit_bytes", {}, self._memory.bytes_max)
        freed = {what.replace(" ", "_"): self._memory.freed[what] for what in self._memory.ways}
        families.add_counts("goodput_aggregator_memory_freed_total", "what", freed)
        more = {
            "health_events": self._ingest.health.used_share(),
            "stack_samples": store.sampled.used_share(),
            "named_phases": self._series.used_share(),
            "history_queries": self._accounts.history.used_share(),
        }
        _add_bounds(families, store, self._authenticator, self._memory, more)
        yield
        yield from self._adding_clocks(families)
        families.add_process("goodput_aggregator")
        for more in filter(None, (self.otlp, self.stream)):
            more.collect(families)
        add_requests(families, self._authenticator)

    def _adding_clocks(self, families: Families) -> Slices[None]:
        if isinstance(self._clock_ns, SteadyClock):
            families.add("goodput_aggregator_clock_step_seconds", {}, self._clock_ns.step_ns() / 1e9)
        listed = self._accounts.clocks.listed()
        offsets = [(name, offset.ns) for name, offset, _ in listed if offset.is_known]
        yield
        if len(offsets) > NODES_SHOWN:
            offsets = heapq.nlargest(NODES_SHOWN, offsets, key=lambda one: abs(one[1]))
        for name, ns in offsets:
            families.add("goodput_node_clock_offset_seconds", {"node": name}, ns / 1e9)
        yield

    def _clamped(self) -> int:
        return sum(account.clamped for account in self._accounts.last())


def _log_failure(refresh: asyncio.Future) -> None:
    if not refresh.cancelled() and refresh.exception() is not None:
        log.error(
            "the series could not be rendered; /metrics has the last ones", exc_info=refresh.exception()
        )


def _is_shown(account: Account, now_ns: int) -> bool:
    return not account.is_settled() or now_ns - account.end_ns <= KEPT_SECONDS * 1e9


def _bodies(families: Families, formats: list[Format]) -> Slices[Bodies]:
    """Yields after each format."""
    found: Bodies = {}
    for format in formats:
        found[format] = format.bodies(families)
        yield
    return found


def joined(format: Format, parts: list[dict[str, bytes]], out: list[bytes]) -> Slices[None]:
    """Add all series to `out`, family by family; yields after each."""
    for metric in CATALOGUE.values():
        if metric.exposer == "aggregator":
            for family in format.families_of(metric):
                found = [part[family] for part in parts if family in part]
                if found:
                    out += (format.head(metric, family, sum(map(len, found))), *found)
                yield


def _add_bounds(
    families: Families,
    store: Store,
    authenticator: RequestAuthenticator,
    memory: MemoryBound,
    more: dict[str, float],
) -> None:
    requests, sessions = authenticator.metrics, authenticator.sessions
    used = {what.replace(" ", "_"): share for what, share in store.used_shares().items()}
    used |= more
    used["connections"] = requests.connections / requests.connections_max
    used["bodies"] = requests.body_bytes / limits.BODIES_BYTES_MAX
    used |= authenticator.budgets.used_shares()
    used["sessions"] = len(sessions) / limits.SESSIONS_MAX if sessions else 0.0
    if memory.bytes_max is not None:
        used["memory"] = memory.resident() / memory.bytes_max
    families.add_counts("goodput_aggregator_bound_used_ratio", "bound", used)


def add_requests(families: Families, authenticator: RequestAuthenticator) -> None:
    """The series of requests, tokens and certificates."""
    authenticator.metrics.collect(families)
    families.add_counts("goodput_aggregator_audit_dropped_total", "kind", authenticator.audit.dropped)
    for (token, bound), count in sorted(authenticator.budgets.refusals.items()):
        labels = {"token": token, "bound": bound}
        families.add("goodput_aggregator_token_refusals_total", labels, count)
    sessions, tokens, files = authenticator.sessions, authenticator.tokens, authenticator.reloaded_files
    families.add("goodput_aggregator_sessions", {}, len(sessions) if sessions else 0)
    for name, series in (("tokens", "token"), ("certificate", "tls")):
        errors, is_failing = (files[name].errors, files[name].is_failing) if name in files else (0, False)
        families.add(f"goodput_aggregator_{series}_reload_errors_total", {}, errors)
        families.add("goodput_aggregator_reload_failing", {"file": name}, int(is_failing))
    families.add_counts("goodput_aggregator_tokens", "scope", tokens.count_by_scope() if tokens else {})
    expiry = tokens.next_expiry() if tokens else None
    families.add("goodput_aggregator_token_expiry_timestamp_seconds", {}, expiry)
    expiry = authenticator.certificate.expiry if authenticator.certificate else None
    families.add("goodput_aggregator_certificate_expiry_timestamp_seconds", {}, expiry)
