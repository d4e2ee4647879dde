"""The load of bench.aggregator.serve: ranks or nodes that push on schedule, each over its own connection.

    python -m bench.aggregator.load       # a Plan as JSON on stdin; prints "ready"; after a line the Result; ends after another

In the first round every reporter pushes as fast as the server answers; then each pushes once in ROUND_SECONDS, at its
own moment, whether or not earlier answers were fast, what its ranks have done by then: they make their steps together, and
are in the midst of one. Reports are built ahead, between two pushes.

It uses one thread, one epoll and a minimal HTTP client, since a general one takes more CPU than the measured server.
"""

from __future__ import annotations

import json
import random
import select
import socket
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from functools import cache
from urllib.parse import urlsplit

from goodput.wire.step_blocks import encode_rows

ROUND_SECONDS, STEP_SECONDS = 10.0, 1.0
START_SECONDS = 0.5  # until the first paced round begins
STEPS = int(ROUND_SECONDS / STEP_SECONDS)  # in one push
SAMPLES = 32  # of a rank in a step
RANKS_PER_RUN = 1000
AHEAD_MAX, IN_FLIGHT_MAX = 500, 64
LATE_SECONDS_MAX = 30.0
PHASES = (
    *("none", "loader", "h2d", "forward", "backward", "optimizer", "communication"),
    *("checkpoint", "restore", "evaluation", "compile"),
)
FORWARD, COMMUNICATION = 3, 6
# Ranks differ in how long they compute, in this many kinds.
KINDS = 8
SHARES = (0.03, 0.05, 0.01, 0.28, 0.48, 0.05, 0.1, 0, 0, 0, 0)


@dataclass
class Plan:
    """`kind` says what a push is: a `report` of goodput in `version` 2 or 1, or `text` for Prometheus' import.

    Reporters are divided among the addresses in `url`, which have commas between them.
    """

    url: str
    token: str = ""
    reporters: int = 10_000
    ranks: int = 1  # of each reporter
    rounds: int = 3
    kind: str = "report"
    version: int = 2


@dataclass
class Result:
    milliseconds: list[float] = field(default_factory=list)
    due_seconds: list[float] = field(
        default_factory=list
    )  # of the same, when they were due after the first was
    sent: int = 0
    rows: int = 0
    accepted_ranks: int = 0
    rejected_ranks: int = 0
    failed: int = 0  # answers other than 200 or 204
    unanswered: int = 0  # LATE_SECONDS_MAX after the last was due
    bytes_sent: int = 0
    seconds: float = 0.0


class Maker:
    """Reports of a reporter as time goes on, each with what is new since the one before."""

    def __init__(self, plan: Plan, start_ns: int):
        from goodput.wire import schema

        self._schema, self._plan, self._start_ns = schema, plan, start_ns
        chance = random.Random(1)
        # When each reporter pushes in a round.
        self.offsets = [chance.uniform(0, ROUND_SECONDS) for _ in range(plan.reporters)]
        self._identity, self._steps = cache(self._identity_of), cache(self._steps_of)
        parts = urlsplit(plan.url.split(",")[0])
        self._head = (
            f"POST {parts.path or '/'} HTTP/1.1\r\nhost: {parts.netloc}\r\naccept: */*\r\n"
            "accept-encoding: identity\r\nconnection: keep-alive\r\nuser-agent: goodput-node\r\n"
            f"content-type: {schema.CONTENT_TYPE}\r\n"
            + (f"authorization: Bearer {plan.token}\r\n" if plan.token else "")
        ).encode()

    def request(self, reporter: int, number: int) -> bytes:
        """The push of a reporter in round `number`."""
        if self._plan.kind == "text":
            return self._sent("".join(_text(rank, number) for rank in self._ranks(reporter)).encode())
        now_ns = self._start_ns + int(((number + 1) * ROUND_SECONDS + self.offsets[reporter]) * 1e9)
        begun = self.steps_begun(reporter, number) if number else 0
        return self.report(reporter, begun, self.steps_begun(reporter, number + 1), now_ns)

    def report(self, reporter: int, done: int, now_done: int, now_ns: int) -> bytes:
        """The push in which its ranks have done `now_done` steps at `now_ns`, and had done `done` in the one before."""
        reports = [self._rank(rank, done, now_done, now_ns) for rank in self._ranks(reporter)]
        report = self._schema.NodeReport(f"n{reporter}", now_ns, reports, version=self._plan.version)
        return self._sent(self._schema.encode(report))

    def _ranks(self, reporter: int) -> range:
        return range(reporter * self._plan.ranks, (reporter + 1) * self._plan.ranks)

    def _sent(self, body: bytes) -> bytes:
        return self._head + b"content-length: %d\r\n\r\n" % len(body) + body

    def steps_begun(self, reporter: int, number: int) -> int:
        """How many steps a reporter's ranks have done when it pushes before round `number`: they are in the midst of one."""
        return number * STEPS + int(self.offsets[reporter] / STEP_SECONDS)

    def _rank(self, rank: int, done: int, now_done: int, now_ns: int):
        steps, totals = self._steps(done, now_done, rank % KINDS)
        at_ns = self._start_ns + int(now_done * STEP_SECONDS * 1e9)
        live = self._schema.Live(
            now_ns=now_ns, last_ns=at_ns, phase="forward", step_next=now_done, steps_done=now_done,
            samples=SAMPLES * now_done, alive=True, ended="", end_ns=0, totals=totals, cost_ns=12_000 * now_done,
            hardware={"since_ns": self._start_ns, "compute_ns": 7 * totals[FORWARD], "idle_ns": now_done},
        )  # fmt: skip
        return self._schema.RankReport(self._identity(rank), now_ns, PHASES, live, **steps)

    def _identity_of(self, rank: int):
        return self._schema.Identity(
            run=f"bench-{rank // RANKS_PER_RUN}", rank=rank % RANKS_PER_RUN, attempt=1,
            world_size=RANKS_PER_RUN, host=f"n{rank // 8}", pid=1000 + rank, start_ns=self._start_ns,
            device="NVIDIA H100 80GB HBM3", device_uuid=f"GPU-{rank:012x}", group="dp0",
            flops_per_step=1e15, peak_flops_per_second=9.89e14, gpu_hour_cost=2.5, dtype="bf16",
        )  # fmt: skip

    def _steps_of(self, done: int, now_done: int, kind: int):
        """The steps and the totals of the ranks of one kind; made once, or the load would take more than the server."""
        rows = [self._row(number, kind) for number in range(done + 1, now_done + 1)]
        steps = {"steps": rows} if self._plan.version == 1 else {"blocks": [encode_rows(rows, len(PHASES))]}
        return steps, rows[-1].totals

    def _row(self, number: int, kind: int):
        return _row(self._schema, number, self._start_ns, kind)


def _row(schema, number: int, start_ns: int, kind: int):
    """A step and the wait before it, which together fill the time since the last one.

    The higher the rank's kind, the more it computes and the less it waits for the others.
    """
    step_ns = int(STEP_SECONDS * 1e9)
    waited_ns, waited_before_ns = _waited(number), _waited(number - 1)
    begin_ns = start_ns + (number - 1) * step_ns + waited_ns - waited_before_ns
    totals = [(int(share * step_ns) + place) * number for place, share in enumerate(SHARES)]
    totals[FORWARD] += kind * step_ns // 1000 * number
    totals[COMMUNICATION] -= kind * step_ns // 1000 * number
    totals[0] += number * step_ns - sum(totals)
    outside = (waited_ns, *[0] * (len(PHASES) - 1))
    return schema.StepRow(
        *(
            number,
            number - 1,
            begin_ns,
            start_ns + number * step_ns,
            SAMPLES * number,
            tuple(totals),
            outside,
        ),
        totals[FORWARD],
    )


@cache
def _waited(number: int) -> int:
    """Time between steps in all up to this one, ns: up to 2 % of a step before each."""
    return 0 if number < 1 else _waited(number - 1) + number * 7919 % int(STEP_SECONDS * 2e7)


def _text(rank: int, number: int) -> str:
    """The same figures as Prometheus would have them: a counter for each phase, the steps, the samples, the cost."""
    labels = f'run="bench-{rank // RANKS_PER_RUN}",rank="{rank % RANKS_PER_RUN}"'
    done = (number + 1) * STEPS
    lines = [
        f'goodput_phase_seconds_total{{{labels},phase="{phase}"}} {share * done * STEP_SECONDS}\n'
        for phase, share in zip(PHASES, SHARES, strict=True)
    ]
    for name, value in (("steps", done), ("samples", SAMPLES * done), ("sdk_cost_seconds", 12e-6 * done)):
        lines.append(f"goodput_{name}_total{{{labels}}} {value}\n")
    return "".join(lines)


class Line:
    """One reporter's connection, and the answer that is coming."""

    def __init__(self, address: tuple[str, int]):
        self.socket = socket.create_connection(address, timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due, self.answer = 0.0, bytearray()

    def send(self, request: bytes, due: float) -> None:
        self.due = due
        self.socket.sendall(request)

    def receive(self) -> tuple[int, bytes] | None:
        """Status and body, once all of it is there. Raises ConnectionError."""
        part = self.socket.recv(65536)
        if not part:
            raise ConnectionError("the server has hung up")
        self.answer += part
        head, end, body = bytes(self.answer).partition(b"\r\n\r\n")
        if not end:
            return None
        status, length = int(head[9:12]), 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if len(body) < length:
            return None
        self.answer.clear()
        return status, body


class Load:
    """All reporters. `first` brings them in, `paced` is what is measured."""

    def __init__(self, plan: Plan):
        self._plan, all_parts = plan, [urlsplit(url) for url in plan.url.split(",")]
        # The first round, which is sent at once, has the steps of the time before.
        self._maker = Maker(plan, time.time_ns() - int(2 * ROUND_SECONDS * 1e9))
        addresses = [(parts.hostname, parts.port) for parts in all_parts]
        self._lines = [Line(addresses[at % len(addresses)]) for at in range(plan.reporters)]
        self._poll, self._by_file = select.epoll(), {}
        for line in self._lines:
            self._by_file[line.socket.fileno()] = line
            self._poll.register(line.socket, select.EPOLLIN)
        self.result, self._waiting, self._began = Result(), 0, 0.0

    def first(self) -> None:
        for reporter, line in enumerate(self._lines):
            self._send(line, self._maker.request(reporter, 0), time.perf_counter())
            self.result.rows += self._plan.ranks * (self._maker.steps_begun(reporter, 1) - STEPS)
            while self._waiting >= IN_FLIGHT_MAX:
                self._take(1.0)
        self._finish()

    def paced(self) -> None:
        self.result.milliseconds.clear()
        self.result.due_seconds.clear()
        rounds, offsets = self._plan.rounds, sorted((at, n) for n, at in enumerate(self._maker.offsets))
        self._began = began = time.perf_counter() + START_SECONDS
        order = ((began + r * ROUND_SECONDS + at, n, r + 1) for r in range(rounds) for at, n in offsets)
        ahead: deque = deque()
        while True:
            now = time.perf_counter()
            while ahead and ahead[0][0] <= now:
                due, reporter, request = ahead.popleft()
                self._send(self._lines[reporter], request, due)
            if len(ahead) < AHEAD_MAX and (following := next(order, None)):
                due, reporter, number = following
                ahead.append((due, reporter, self._maker.request(reporter, number)))
                self._take(0)
            elif ahead:
                self._take(max(0.0, ahead[0][0] - time.perf_counter()))
            else:
                break
        self._finish()
        self.result.seconds = time.perf_counter() - began

    def _finish(self) -> None:
        deadline = time.perf_counter() + LATE_SECONDS_MAX
        while self._waiting:
            if time.perf_counter() > deadline:
                self.result.unanswered = self._waiting
                return
            self._take(1.0)

    def _send(self, line: Line, request: bytes, due: float) -> None:
        line.send(request, due)
        self._waiting += 1
        self.result.sent += 1
        self.result.rows += STEPS * self._plan.ranks
        self.result.bytes_sent += len(request)

    def _take(self, seconds: float) -> None:
        for number, _ in self._poll.poll(seconds, 256):
            line = self._by_file[number]
            answer = line.receive()
            if answer is not None:
                self._waiting -= 1
                self.result.milliseconds.append(1e3 * (time.perf_counter() - line.due))
                self.result.due_seconds.append(line.due - self._began)
                self._count(*answer)

    def _count(self, status: int, body: bytes) -> None:
        if status not in (200, 204):
            self.result.failed += 1
        elif body and self._plan.kind == "report":
            from goodput.wire import schema

            ack = schema.decode_ack(body)
            self.result.accepted_ranks += ack.accepted
            self.result.rejected_ranks += len(ack.rejected)


def main() -> int:
    load = Load(Plan(**json.loads(sys.stdin.readline())))
    load.first()
    print("ready", flush=True)
    sys.stdin.readline()
    load.paced()
    print(json.dumps(asdict(load.result)), flush=True)
    sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
