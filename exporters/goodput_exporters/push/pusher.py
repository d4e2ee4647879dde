"""Pushes a report of the node to the aggregator every few seconds, in a thread of its own.

What the answer means for the data that was sent:

    200                      acknowledged; ranks named as rejected are counted and not sent again
    400 413 415 422          this report cannot be accepted: it is halved down to one rank, which is dropped
    429                      the token's share is used up: everything is kept and sent after Retry-After
    other 3xx, 4xx           a wrong token or path: everything is kept; a refused token is logged once
    5xx, timeout, no answer  everything is kept and sent later

An aggregator that does not support this agent's report version is sent an older one that it does support, the same data
at once; where there is none, everything is kept and counted, and /healthz says so. Its answers show when it supports a newer one again.

Retries wait 1, 2, 4 … 30 s, less a random part so that nodes do not retry together. A batch is at most about 8 MiB.
Without anything to send, every other interval sends a report without ranks, so a lost aggregator is noticed.

    pusher = Pusher("http://127.0.0.1:9471", node="n0"); pusher.start(); pusher.add(reports); pusher.stop()
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from goodput.wire import schema
from goodput_exporters.events.event_queue import EventQueue
from goodput_exporters.push import backlog
from goodput_exporters.push.client import AggregatorClient, Answer, printable
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials, Unreachable
from goodput_exporters.push.stacks import Stacks
from goodput_exporters.system.ranks import RankKey

log = logging.getLogger("goodput.node")

PATH = "/api/v1/ingest"
ACCEPTED, REJECTED, UNREACHABLE, NOTHING = "accepted", "rejected", "unreachable", "nothing"
# A row of 27 phases with nine bytes per number; an event of 64 characters of three bytes is shorter.
ROW_BYTES_MAX = 2 * 27 * 9 + 60
BATCH_ROWS_MAX = (4 << 20) // ROW_BYTES_MAX
BATCH_RANKS_MAX = 1024  # of at most 4 KiB without rows
BATCHES_PER_PUSH_MAX = 256
UNUSABLE_STATUS = (400, 413, 415, 422)
BACKOFF_SECONDS_MAX = 30.0
LOGGED_MAX = 4096
REASONS = frozenset((*schema.REJECTED_FOR, *(f"http_{status}" for status in UNUSABLE_STATUS)))
_STATUS_REASONS = {401: "unauthorized", 403: "forbidden"}
VERSION, QUOTA = "version", "quota"
FAILURES = (
    *_STATUS_REASONS.values(),
    VERSION,
    QUOTA,
    "token",
    "tls",
    "connect",
    "timeout",
    "answer",
    "http_3xx",
    "http_4xx",
    "http_5xx",
)


class Pusher:
    def __init__(
        self,
        aggregator: str,
        node: str,
        *,
        credentials: Credentials = NONE_NEEDED,
        interval_seconds: float = 5.0,
        timeout_seconds: float = 10.0,
        stacks: Stacks | None = None,
        health: EventQueue | None = None,
        unix_ns: Callable[[], int] = time.time_ns,
        chance: Callable[[], float] = random.random,
        agent_version: str = "",
    ):
        self.url = aggregator.rstrip("/") + PATH
        self.node, self._agent_version = node, agent_version
        self.client = AggregatorClient(aggregator, credentials)
        self._has_token = bool(credentials.token_file)
        self._stacks, self._health = stacks, health
        self._interval_seconds, self._timeout_seconds = interval_seconds, timeout_seconds
        self._unix_ns, self._chance = unix_ns, chance
        self._backlog, self._lock = backlog.Backlog(), threading.Lock()
        self._outcomes = Counter(dict.fromkeys((ACCEPTED, REJECTED, UNREACHABLE), 0))
        self._failures = Counter(dict.fromkeys(FAILURES, 0))
        self._rejections: Counter[str] = Counter()
        self._logged: set[tuple] = set()
        self._refused_status = 0  # 401 or 403 while this node is refused
        self._version = schema.VERSION  # of the reports that are sent
        # Of the last push that was answered, when it was sent and how long it took.
        self._answered_ns = (0, 0)
        self._only: tuple[int, ...] = ()  # the versions of an aggregator that supports none of ours
        self._retry_seconds = 0.0  # for which the aggregator does not want to be tried
        self._stopping = threading.Event()
        self._flush_deadline_ns: int | None = None
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)
        if self.client.token_is_exposed:
            log.warning("the token is sent in clear text to %s: use https, unless a proxy does", self.url)

    # -- called by the agent's other threads

    def add(self, reports: list[schema.RankReport]) -> None:
        with self._lock:
            for report in reports:
                self._backlog.add(report)

    def is_acknowledged(self, key: RankKey) -> bool:
        """Whether the aggregator has everything of this rank process."""
        with self._lock:
            return self._backlog.is_acknowledged(key)

    def forget(self, key: RankKey) -> None:
        """Drop what is queued of a rank process."""
        with self._lock:
            self._backlog.forget(key)

    def warnings(self) -> list[str]:
        """Why the aggregator takes nothing although it answers, for the operator."""
        return [self._version_text()] if self._only else []

    def collect(self, families) -> None:
        with self._lock:
            families.add("goodput_node_backlog_rows", {}, self._backlog.rows)
            families.add("goodput_node_rows_thinned_total", {}, self._backlog.rows_thinned)
            families.add("goodput_node_events_dropped_total", {}, self._backlog.events_dropped)
            families.add("goodput_node_reports_refused_total", {}, self._backlog.reports_refused)
        families.add_counts("goodput_node_pushes_total", "outcome", self._outcomes)
        families.add_counts("goodput_node_push_failures_total", "reason", self._failures)
        families.add_counts("goodput_node_push_rejections_total", "reason", self._rejections)

    # -- the thread

    def start(self) -> None:
        self._thread.start()

    def stop(self, flush_seconds: float = 3.0) -> None:
        """Send what is queued, for at most this long, and end. What was not sent stays in the rank pages."""
        self._flush_deadline_ns = time.monotonic_ns() + int(flush_seconds * 1e9)
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(flush_seconds)
        if not self._thread.is_alive():
            self.client.close()

    def _run(self) -> None:
        failures, wait_seconds = 0, self._interval_seconds * self._chance() / 2
        outcome = NOTHING
        while not self._stopping.wait(wait_seconds):
            outcome = self._push_safely(probe=outcome != ACCEPTED)
            failures = failures + 1 if outcome in (REJECTED, UNREACHABLE) else 0
            wait_seconds = self._wait_seconds(failures)
        self._push_safely()

    def _wait_seconds(self, failures: int) -> float:
        """The interval less up to a tenth, so that nodes drift apart; after failures the backoff."""
        if not failures:
            return self._interval_seconds * (1 - 0.1 * self._chance())
        backoff = min(BACKOFF_SECONDS_MAX, 2.0 ** min(failures - 1, 10)) * (1 - 0.5 * self._chance())
        # With jitter: not all at the moment that was named to all of them.
        return max(backoff, self._retry_seconds * (1 + 0.5 * self._chance()))

    def _push_safely(self, probe: bool = False) -> str:
        try:
            if not self._answered_ns[0]:
                # From how long this takes the aggregator knows how far our clock is off, before it gets times of ranks.
                outcome, _ = self._send([])
                if outcome != ACCEPTED:
                    return outcome
                return ACCEPTED if (pushed := self.push()) == NOTHING else pushed
            return self.push(probe)
        except Exception as error:
            self._outcomes[UNREACHABLE] += 1
            self._log_once(("failed", str(error)), "push to %s failed: %r", self.url, error)
            return UNREACHABLE

    # -- one push

    def push(self, probe: bool = False) -> str:
        """Send what is queued in batches; the last batch's outcome. REJECTED and UNREACHABLE keep the data.

        With nothing queued nothing is sent, or with `probe` a report without ranks.
        """
        rows_max, ranks_max, outcome = BATCH_ROWS_MAX, BATCH_RANKS_MAX, NOTHING
        for _ in range(BATCHES_PER_PUSH_MAX):
            with self._lock:
                batch = self._backlog.pending(rows_max, ranks_max)
            if not batch.reports and not (self._health and self._health.pending()):
                return self._send([])[0] if probe and outcome == NOTHING else outcome
            outcome, status = self._send(batch.reports)
            if outcome == ACCEPTED:
                if not batch.truncated:
                    return outcome
            elif status not in UNUSABLE_STATUS or not batch.reports:
                return outcome
            elif len(batch.reports) > 1:
                ranks_max = len(batch.reports) // 2
            elif status == 413 and (rows := _rows(batch.reports)) > 1:
                rows_max = rows // 2
            else:
                self._drop(batch.reports, f"http_{status}")
                outcome = ACCEPTED if not batch.truncated else outcome
        return outcome

    def _send(self, reports: list[schema.RankReport]) -> tuple[str, int]:
        """Outcome and HTTP status (0: none) of one batch."""
        self._retry_seconds = 0.0
        stacks = self._stacks.pending() if self._stacks else []
        health = self._health.pending() if self._health else []
        previous_sent_ns, previous_took_ns = self._answered_ns
        began_ns, sent_ns = time.monotonic_ns(), self._unix_ns()
        report = schema.NodeReport(
            self.node,
            sent_ns,
            reports,
            stacks=stacks,
            health=health,
            agent=self._agent_version,
            previous_sent_ns=previous_sent_ns,
            previous_took_ns=previous_took_ns,
        )
        try:
            body = self._encoded(report)
        except schema.SchemaError as error:
            # As if the aggregator had rejected it: the batch is halved down to the rank at fault.
            self._outcomes[REJECTED] += 1
            self._log_once((REJECTED, str(error)), "push to %s: %s", self.url, error)
            return REJECTED, 400
        try:
            answer = self._post(body)
            if self._must_change_version(answer):
                answer = self._post(self._encoded(report))
            ack = schema.decode_ack(answer.body) if answer.status == 200 else None
        except schema.SchemaError as error:
            return self._count_unreachable(Unreachable(str(error))), 0
        except Unreachable as error:
            return self._count_unreachable(error), 0
        if answer.status in UNUSABLE_STATUS and answer.versions and self._version not in answer.versions:
            # Not this report is at fault, so none of it is dropped.
            return self._count_version(answer), 0
        self._only, self._retry_seconds = (), answer.retry_seconds
        if ack is None:
            return self._count_refusal(answer.status, answer.text[:300]), answer.status
        self._answered_ns = (sent_ns, time.monotonic_ns() - began_ns)
        self._acknowledge(ack, reports, stacks, health)
        self._outcomes[ACCEPTED] += 1
        self._log_refused_token(0, "")
        return ACCEPTED, answer.status

    def _encoded(self, report: schema.NodeReport) -> bytes:
        """A report in the present version. Raises SchemaError."""
        ranks = report.ranks if self._version == 1 else [schema.in_blocks(rank) for rank in report.ranks]
        return schema.encode(msgspec.structs.replace(report, version=self._version, ranks=ranks))

    def _must_change_version(self, answer: Answer) -> bool:
        """Use the newest version that both support from now on; whether the report must be sent again in it."""
        common = set(answer.versions) & set(schema.VERSIONS)
        if not common or max(common) == self._version:
            return False
        before, self._version = self._version, max(common)
        what = f"report versions {', '.join(map(str, answer.versions))}; reports are of version {self._version} now"
        self._log_once(("version", self._version), "push to %s: the aggregator supports %s", self.url, what)
        return answer.status in UNUSABLE_STATUS and before not in answer.versions

    def _post(self, body: bytes) -> Answer:
        seconds = self._timeout_seconds
        if self._flush_deadline_ns is not None:
            seconds = min(seconds, (self._flush_deadline_ns - time.monotonic_ns()) / 1e9)
        if seconds <= 0:
            raise Unreachable("no time left to send it before the agent ends")
        return self.client.post(PATH, body, schema.CONTENT_TYPE, seconds)

    def _count_unreachable(self, error: Unreachable) -> str:
        self._outcomes[UNREACHABLE] += 1
        self._failures[error.reason] += 1
        self._answered_ns = (0, 0)  # It may be another process now, which does not know this node.
        key = UNREACHABLE, str(error)
        if self._is_new(key):  # Explaining may take a second connection.
            self._log_once(key, "push to %s: %s", self.url, self.client.explain(error))
        return UNREACHABLE

    def _count_version(self, answer: Answer) -> str:
        """Count an answer whose sender supports no version of ours; returns the outcome."""
        self._only = answer.versions
        self._outcomes[REJECTED] += 1
        self._failures[VERSION] += 1
        self._log_once((VERSION, self._only), "push to %s: %s", self.url, self._version_text())
        return REJECTED

    def _version_text(self) -> str:
        theirs, ours = (" and ".join(map(str, versions)) for versions in (self._only, schema.VERSIONS))
        return (
            f"this aggregator supports {theirs}, this agent sends report versions {ours}: update the older one. "
            "Measurements are kept, up to a bound, and sent then"
        )

    def _count_refusal(self, status: int, text: str) -> str:
        outcome = UNREACHABLE if status >= 500 else REJECTED
        self._outcomes[outcome] += 1
        by_class = QUOTA if status == 429 else f"http_{min(max(status // 100, 3), 5)}xx"
        self._failures[_STATUS_REASONS.get(status, by_class)] += 1
        if status in _STATUS_REASONS:
            self._log_refused_token(status, text)
        else:
            self._log_once((status, text), "push to %s: HTTP %d: %s", self.url, status, text)
        return outcome

    def _log_refused_token(self, status: int, text: str) -> None:
        """Log once when the aggregator begins to refuse this node (401, 403), and once when it accepts it again (0)."""
        if status == self._refused_status:
            return
        self._refused_status = status
        if not status:
            log.warning("push to %s: accepted again", self.url)
            return
        advice = "the token was not accepted" if self._has_token else "a token is required: --token-file"
        log.warning(
            "push to %s: HTTP %d: %s: %s. Measurements are kept, up to a bound, and sent once accepted",
            *(self.url, status, advice, text),
        )

    def _acknowledge(self, ack: schema.Ack, reports: list, stacks: list, health: list) -> None:
        with self._lock:
            self._backlog.acknowledge(reports)
        if self._health:
            self._health.acknowledge(health)
        if self._stacks:
            self._stacks.acknowledge(stacks)
            self._stacks.request(ack.wanted)
        sent = {(report.identity.run, report.identity.rank) for report in reports}
        for rejection in ack.rejected:
            if (rejection.run, rejection.rank) in sent:
                self._count_rejection(rejection)

    def _drop(self, reports: list[schema.RankReport], reason: str) -> None:
        with self._lock:
            self._backlog.acknowledge(reports)
        for report in reports:
            run, rank = report.identity.run, report.identity.rank
            self._count_rejection(schema.Rejection(run, rank, reason, "its report is dropped"))

    def _count_rejection(self, rejection: schema.Rejection) -> None:
        # Another machine chose the reason: unknown ones become `other`, so that it cannot create series.
        reason = rejection.reason if rejection.reason in REASONS else "other"
        self._rejections[reason] += 1
        key = rejection.run, rejection.rank, reason
        text = printable(rejection.text[:300])
        self._log_once(key, "aggregator rejected run %s rank %d (%s): %s", *key, text)

    def _log_once(self, key: tuple, text: str, *arguments) -> None:
        if self._is_new(key):
            self._logged.add(key)
            log.warning(text, *arguments)

    def _is_new(self, key: tuple) -> bool:
        return key not in self._logged and len(self._logged) < LOGGED_MAX


def _rows(reports: list[schema.RankReport]) -> int:
    return sum(len(report.steps) + len(report.events) for report in reports)
