"""The pusher: every few seconds sends the aggregator one report of the node, and forgets what it took.

In: RankReports from the looks (`offer`). Out: POSTs of a `schema.NodeReport` to `<aggregator>/api/v1/ingest`.
It has a thread of its own, so a slow aggregator never delays a look. What an answer means:

    200                     taken; ranks that it names as rejected are counted and not sent again
    400 413 415 422         this report cannot be taken: it is halved until one rank remains, which is dropped
    other 3xx, 4xx          the call is wrong (a token, a path): everything is kept and tried again later; a token that
                            is not accepted (401, 403) is said once in the log until one is again
    5xx, timeout, no answer everything is kept and tried again later

Later means after 1 s, 2 s, 4 s … 30 s at most, less a random part so that the nodes do not come back as one.
A batch is at most about 8 MiB. It does not look at what a report says. Where there are `stacks`, it brings those
that wait and hands over what the answer asks for; health events go along until they are acknowledged. While nothing
waits it sends a report without ranks every other interval: an aggregator that is gone is seen within two.

    pusher = Pusher("http://127.0.0.1:9471", node="n0"); pusher.start(); pusher.offer(reports); pusher.stop()
"""

from __future__ import annotations

import logging
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

from goodput.access.listening import is_loopback
from goodput.wire import schema
from goodput_exporters.events.event_queue import HealthLog
from goodput_exporters.push import backlog
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials, Unreachable, explained
from goodput_exporters.push.lean_httpx import httpx
from goodput_exporters.push.stacks import Stacks
from goodput_exporters.system.ranks import RankKey

log = logging.getLogger("goodput.node")

PATH = "/api/v1/ingest"
ACCEPTED, REJECTED, UNREACHABLE, NOTHING = "accepted", "rejected", "unreachable", "nothing"
# A row of 27 phases whose every number takes nine bytes; an event of 64 characters of three bytes is shorter.
ROW_BYTES_MAX = 2 * 27 * 9 + 60
BATCH_ROWS_MAX = (4 << 20) // ROW_BYTES_MAX
BATCH_RANKS_MAX = 1024  # of at most 4 KiB without rows
BATCHES_PER_PUSH_MAX = 256
UNUSABLE_STATUS = (400, 413, 415, 422)
ANSWER_BYTES_MAX = 4 << 20
HEADERS = {"Content-Type": schema.CONTENT_TYPE, "Accept-Encoding": "identity"}
BACKOFF_SECONDS_MAX = 30.0
LOGGED_MAX = 4096
REASONS = frozenset((*schema.REJECTED_FOR, *(f"http_{status}" for status in UNUSABLE_STATUS)))
FAILURES = (
    *("unauthorized", "forbidden", "token", "tls", "connect", "timeout", "answer"),
    *("http_4xx", "http_5xx"),
)
_STATUS_REASONS = {401: "unauthorized", 403: "forbidden"}


class Pusher:
    def __init__(
        self,
        aggregator: str,
        node: str,
        *,
        credentials: Credentials = NONE_NEEDED,
        interval_seconds: float = 5.0,
        timeout_seconds: float = 10.0,
        rows_max: int = backlog.ROWS_MAX,
        stacks: Stacks | None = None,
        health: HealthLog | None = None,
        unix_ns: Callable[[], int] = time.time_ns,
        chance: Callable[[], float] = random.random,
    ):
        self.url = aggregator.rstrip("/") + PATH
        self.node = node
        self._credentials, self._stacks, self._health = credentials, stacks, health
        self._interval_seconds, self._timeout_seconds = interval_seconds, timeout_seconds
        self._unix_ns, self._chance = unix_ns, chance
        self._backlog = backlog.Backlog(rows_max)
        self._lock = threading.Lock()  # around the backlog
        self._outcomes = Counter({ACCEPTED: 0, REJECTED: 0, UNREACHABLE: 0})
        self._rejections: Counter[str] = Counter()
        self._failures: Counter[str] = Counter(dict.fromkeys(FAILURES, 0))
        self._logged: set[tuple] = set()
        self._refused = 0  # the status with which this node was last refused, 0 while it is not
        self._stopping = threading.Event()
        self._deadline_ns: int | None = None  # of the last flush
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)
        self._client: httpx.Client | None = None
        self._certificates: tuple | None = None  # what their files were when the client was made
        if in_the_clear(self.url, credentials):
            log.warning("the token goes in the clear to %s: use https, if not a proxy does", self.url)

    # -- what the looks call

    def offer(self, reports: list[schema.RankReport]) -> None:
        with self._lock:
            for report in reports:
                self._backlog.add(report)

    def settled(self, key: RankKey) -> bool:
        with self._lock:
            return self._backlog.settled(key)

    def forget(self, key: RankKey) -> None:
        with self._lock:
            self._backlog.forget(key)

    def collect(self, families) -> None:
        """Add the pusher's own series."""
        with self._lock:
            families.add("goodput_node_backlog_rows", {}, self._backlog.rows)
            families.add("goodput_node_rows_thinned_total", {}, self._backlog.rows_thinned)
        for outcome, count in self._outcomes.items():
            families.add("goodput_node_pushes_total", {"outcome": outcome}, count)
        for reason, count in self._failures.items():
            families.add("goodput_node_push_failures_total", {"reason": reason}, count)
        for reason, count in sorted(self._rejections.items()):
            families.add("goodput_node_push_rejections_total", {"reason": reason}, count)

    # -- its life

    def start(self) -> None:
        self._thread.start()

    def stop(self, flush_seconds: float = 3.0) -> None:
        """Send once more what waits, for at most this long, and end. What was not sent stays in the pages."""
        self._deadline_ns = time.monotonic_ns() + int(flush_seconds * 1e9)
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(flush_seconds)
        if not self._thread.is_alive() and self._client:
            self._client.close()

    def _run(self) -> None:
        failures, wait_seconds = 0, self._interval_seconds * self._chance() / 2
        outcome = NOTHING
        while not self._stopping.wait(wait_seconds):
            # A node without ranks sends every other time, so that it knows as soon as one with ranks who cannot be reached.
            outcome = self._push_guarded(probes=outcome != ACCEPTED)
            failures = failures + 1 if outcome in (REJECTED, UNREACHABLE) else 0
            wait_seconds = self._wait_seconds(failures)
        self._push_guarded()

    def _wait_seconds(self, failures: int) -> float:
        """Up to a tenth less than the interval, so that nodes drift apart; after failures the backoff."""
        if not failures:
            return self._interval_seconds * (1 - 0.1 * self._chance())
        return min(BACKOFF_SECONDS_MAX, 2.0 ** min(failures - 1, 10)) * (1 - 0.5 * self._chance())

    def _push_guarded(self, probes: bool = False) -> str:
        try:
            return self.push(probes)
        except Exception as error:
            self._outcomes[UNREACHABLE] += 1
            self._log_once(("failed", str(error)), "push to %s failed: %r", self.url, error)
            return UNREACHABLE

    # -- one push

    def push(self, probes: bool = False) -> str:
        """Send what waits, batch by batch. The outcome of the last; REJECTED and UNREACHABLE kept theirs.

        Where nothing waits, nothing is sent; a report without ranks if it `probes`.
        """
        rows_max, ranks_max, outcome = BATCH_ROWS_MAX, BATCH_RANKS_MAX, NOTHING
        for _ in range(BATCHES_PER_PUSH_MAX):
            with self._lock:
                batch = self._backlog.pending(rows_max, ranks_max)
            if not batch.reports and not (self._health and self._health.pending()):
                return self._send([])[0] if probes and outcome == NOTHING else outcome
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
        """Outcome and HTTP status (0: none) of one batch, which is acknowledged when it was taken."""
        stacks = self._stacks.pending() if self._stacks else []
        health = self._health.pending() if self._health else []
        report = schema.NodeReport(
            node=self.node, sent_ns=self._unix_ns(), ranks=reports, stacks=stacks, health=health
        )
        status, answer = 0, b""
        try:
            body = schema.encode(report)
        except schema.SchemaError as error:
            # As if the aggregator had refused it, so that the batch is halved down to the rank at fault.
            self._outcomes[REJECTED] += 1
            self._log_once((REJECTED, str(error)), "push to %s: %s", self.url, error)
            return REJECTED, 400
        try:
            status, answer = self._post(body)
            if status == 200:
                self._take(schema.decode_ack(answer), reports, stacks)
                if self._health:
                    self._health.settled(health)
        except (httpx.HTTPError, Unreachable, schema.SchemaError, OSError) as error:
            self._outcomes[UNREACHABLE] += 1
            self._failures[_reason_of(error)] += 1
            if self._is_new(what := (UNREACHABLE, str(error) or type(error).__name__)):
                self._log_once(
                    what, "push to %s: %s", self.url, printable(explained(error, self.url, self._credentials))
                )
            return UNREACHABLE, 0
        outcome = ACCEPTED if status == 200 else UNREACHABLE if status >= 500 else REJECTED
        self._outcomes[outcome] += 1
        if outcome == ACCEPTED:
            self._tell_of_tokens(0, "")
        else:
            self._failures[_STATUS_REASONS.get(status, "http_5xx" if status >= 500 else "http_4xx")] += 1
            text = printable(answer[:300])
            if status in _STATUS_REASONS:
                self._tell_of_tokens(status, text)
            else:
                self._log_once((status, text), "push to %s: HTTP %d: %s", self.url, status, text)
        return outcome, status

    def _tell_of_tokens(self, status: int, text: str) -> None:
        """Once when the aggregator refuses this node (`status` 401 or 403), and once when it does not any more."""
        if status == self._refused:
            return
        self._refused = status
        if not status:
            log.warning("push to %s: accepted again", self.url)
            return
        advice = (
            "the token was not accepted"
            if self._credentials.token_file
            else "a token is needed: --token-file"
        )
        log.warning(
            "push to %s: HTTP %d: %s: %s. What is measured is kept, up to a bound, and pushed when it is accepted",
            *(self.url, status, advice, text),
        )

    def _post(self, body: bytes) -> tuple[int, bytes]:
        deadline_ns = time.monotonic_ns() + int(self._timeout_seconds * 1e9)
        if self._deadline_ns is not None:
            deadline_ns = min(deadline_ns, self._deadline_ns)
        seconds = (deadline_ns - time.monotonic_ns()) / 1e9
        if seconds <= 0:
            raise Unreachable("no time left before the end")
        headers = {**HEADERS, **self._credentials.headers()}
        arguments = {"content": body, "headers": headers, "timeout": seconds}
        with self._connected().stream("POST", self.url, **arguments) as response:
            answer = read(response, deadline_ns)
        return response.status_code, bytes(answer) if response.status_code == 200 else said_by(
            response, answer
        )

    def _connected(self) -> httpx.Client:
        """The client, made anew when the files of its certificates have changed. Raises Unreachable."""
        mark = self._credentials.mark()
        if self._client is None or mark != self._certificates:
            # Without TLS to verify, loading the certificate store would only cost 5 MiB.
            client = httpx.Client(
                verify=self._credentials.context() if self.url.startswith("https:") else False
            )
            if self._client is not None:
                self._client.close()
            self._client, self._certificates = client, mark
        return self._client

    def _take(self, ack: schema.Ack, reports: list[schema.RankReport], stacks: list[schema.Stack]) -> None:
        with self._lock:
            self._backlog.acknowledge(reports)
        if self._stacks:
            self._stacks.settled(stacks)
            self._stacks.want(ack.wanted)
        sent = {(report.identity.run, report.identity.rank) for report in reports}
        for rejection in ack.rejected:
            if (rejection.run, rejection.rank) in sent:
                reason = self._count_rejection(rejection.reason)
                self._log_once(
                    (rejection.run, rejection.rank, reason),
                    "aggregator refused run %s rank %d (%s): %s",
                    *(rejection.run, rejection.rank, reason, printable(rejection.text[:300])),
                )

    def _drop(self, reports: list[schema.RankReport], reason: str) -> None:
        with self._lock:
            self._backlog.acknowledge(reports)
        for report in reports:
            self._count_rejection(reason)
            who = report.identity.run, report.identity.rank
            self._log_once((*who, reason), "dropped a report of run %s rank %d: %s", *who, reason)

    def _count_rejection(self, reason: str) -> str:
        """The reason as a label: it comes from somebody else, and one that is none of ours is `other`."""
        reason = reason if reason in REASONS else "other"
        self._rejections[reason] += 1
        return reason

    def _log_once(self, what: tuple, text: str, *arguments) -> None:
        if self._is_new(what):
            self._logged.add(what)
            log.warning(text, *arguments)

    def _is_new(self, what: tuple) -> bool:
        return what not in self._logged and len(self._logged) < LOGGED_MAX


def _reason_of(error: Exception) -> str:
    """One word of FAILURES for why no answer came."""
    if isinstance(error, Unreachable):
        return error.reason
    if isinstance(error, httpx.TimeoutException):
        return "timeout"
    if isinstance(error, httpx.TransportError | OSError):
        return "tls" if _is_of_tls(error) else "connect"
    return "answer"


def _is_of_tls(error: BaseException | None) -> bool:
    """httpx says it in the text alone, or in what it was raised from."""
    while error is not None:
        if isinstance(error, ssl.SSLError) or "SSL" in str(error) or "TLS" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def in_the_clear(url: str, credentials: Credentials) -> bool:
    """Whether a token would leave this machine without TLS."""
    leaves = url.startswith("http:") and not is_loopback(urlsplit(url).hostname or "")
    return bool(credentials.token_file) and leaves


def said_by(response: httpx.Response, body: bytes) -> bytes:
    """The words of an answer that is no 200: a redirection's are in a header, a proxy may have none but the status."""
    if where := response.headers.get("location"):
        return f"it is elsewhere: name {where.partition('?')[0].removesuffix(PATH)} as its address".encode()
    return bytes(body).strip() or response.reason_phrase.encode()


def read(response: httpx.Response, deadline_ns: int) -> bytearray:
    """An answer's body as it comes, since what is not unpacked cannot become more than it was. Raises Unreachable."""
    if "content-encoding" in response.headers:
        raise Unreachable("the answer is packed (Content-Encoding), which was not asked for")
    answer = bytearray()
    for chunk in response.iter_raw():
        answer += chunk
        if len(answer) > ANSWER_BYTES_MAX or time.monotonic_ns() > deadline_ns:
            raise Unreachable(f"answer too long or too slow after {len(answer)} bytes")
    return answer


def printable(answer: bytes | str) -> str:
    """What somebody else wrote, fit for a log: one line that no terminal obeys."""
    text = answer if isinstance(answer, str) else answer.decode("utf-8", "replace")
    text = text.strip()
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _rows(reports: list[schema.RankReport]) -> int:
    return sum(len(report.steps) + len(report.events) for report in reports)
