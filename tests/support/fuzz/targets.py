"""What fuzzing feeds bytes to: each reader of what others write, with what it promises for any bytes.

A target takes bytes and returns whether it could use them; it raises only where a promise is broken. `SEEDS` gives each
target valid inputs to begin with.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec.structs import replace
from support import nccl_ras
from support.account.account_history import Process, assert_closes, ns
from support.aggregator.reports import body_of, rank_report
from support.paths import ROOT
from support.rank_page.page_maker import HEAD_BYTES, Forgery, Rank
from support.trace.trace_maker import copy, dumps, kernel, launch, loader, op, step, sync

from goodput.account import compute
from goodput.account.document import document
from goodput.aggregator.ingest.pushed_steps import decode_steps, in_version_2
from goodput.aggregator.ingest.store import ReportRejected, Store
from goodput.aggregator.stream import forwarding, members, messages
from goodput.aggregator.stream.decoding import decode
from goodput.rank_page import page
from goodput.rank_page.page import PageError
from goodput.rank_page.reader import Reader
from goodput.runlog.log_file import LogError
from goodput.runlog.replay import replay
from goodput.trace import analyze
from goodput.trace.hangs import flight_dump
from goodput.trace.hangs.flight import dump_document
from goodput.trace.hangs.ras import analyze_ras
from goodput.trace.stream import TraceError
from goodput.wire import schema, step_columns
from goodput.wire.step_blocks import BlockError, StepBlock, check_block, encode_rows
from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.dcgm_endpoint.driver import DcgmEndpoint
from goodput_exporters.gpu.dcgm_endpoint.page import parse_page
from goodput_exporters.gpu.worker import Options

NOW_NS = ns(2000)
WIDTH, ROWS_MAX = 8, 64


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="goodput-fuzz-"))


def _file(name: str, data: bytes) -> str:
    path = _folder() / name
    path.write_bytes(data)
    return str(path)


# -- The rank page


@functools.cache
def _forged() -> Forgery:
    return Forgery(_folder() / "forged.page", Rank(_folder()).train(30).head())


def rank_page(data: bytes) -> bool:
    """A snapshot within its bounds, or a PageError. Each 11 bytes put the last 8 of them at a place of a good page."""
    forged = _forged()
    forged.restore()
    for at in range(0, len(data), 11):
        place = int.from_bytes(data[at : at + 3], "little")
        forged.put(place % HEAD_BYTES, data[at + 3 : at + 11])
    try:
        with Reader(str(forged.path)) as reader:
            snapshot = reader.snapshot()
            reader.snapshot(since_step=7, since_event=1)
            reader.alive()
            for slot in (0, 3, page.HISTOGRAMS - 1):
                for first, counts in reader.histogram_blocks(slot):
                    assert 0 <= first < page.HISTOGRAM_WORDS and len(counts) == 1024
    except PageError:
        return False
    assert len(snapshot.steps) <= page.STEP_RING and len(snapshot.events) <= page.EVENT_RING
    numbers = (snapshot.last_ns, snapshot.end_ns, snapshot.samples, snapshot.step_next, *snapshot.totals)
    assert all(0 <= number < page.NS_MAX for number in numbers)
    json.dumps([snapshot.phases, snapshot.identity, [event.text for event in snapshot.events]])
    return True


def page_seeds() -> list[bytes]:
    words = (page.W_DROPS, page.W_BACKGROUND_TOTALS, page.W_EVENT_RING, page.W_HISTOGRAMS - 1)
    return [b"", b"".join((8 * word).to_bytes(3, "little") + b"\1" + bytes(7) for word in words)]


# -- Step blocks


_BLOCKS = msgspec.msgpack.Decoder(list[StepBlock])


def step_blocks(data: bytes) -> bool:
    """Blocks that are accepted decode; the vectorized check and the check of a row agree on each."""
    try:
        blocks = _BLOCKS.decode(data)[:4]
        for block in blocks:
            check_block(block, WIDTH, ROWS_MAX)
    except (msgspec.MsgspecError, UnicodeDecodeError, BlockError):
        return False
    if not blocks:
        return False
    columns = step_columns.decode(blocks, WIDTH)
    wrong = step_columns.wrong_rows(columns)
    for begin, end in pairwise(columns.begins):
        before = 0
        rows = step_columns.step_rows(columns, int(begin), int(end), WIDTH)
        for row, is_wrong in zip(rows, wrong[begin:end], strict=True):
            try:
                schema.check_step(row, WIDTH, "here")
                is_right = row.number > before
            except schema.SchemaError:
                is_right = False
            before = row.number
            assert is_right != bool(is_wrong), row
    return not wrong.any()


def block_seeds() -> list[bytes]:
    rows = [
        schema.StepRow(n, n - 1, 10**18 + n * 10**9, 10**18 + (n + 1) * 10**9, 8 * n, (n * 10**9, *[0] * 7), (0,) * 8)
        for n in range(1, 9)
    ]  # fmt: skip
    return [msgspec.msgpack.encode([encode_rows(rows, WIDTH), encode_rows(rows[:1], WIDTH)])]


# -- Reports


def report(data: bytes) -> bool:
    """Decoded and merged as the aggregator does; the account of what was accepted closes."""
    try:
        found = schema.decode(data)
    except schema.SchemaError:
        return False
    store, is_used = Store(), False
    for rank in found.ranks[:16]:
        with suppress(schema.SchemaError, ReportRejected):
            schema.check(rank)
            (steps,) = decode_steps([in_version_2(rank)])
            if isinstance(steps, schema.SchemaError):
                raise steps
            rows = step_columns.step_rows(steps, 0, len(steps), len(rank.phases))
            store.merge(replace(rank, steps=rows, blocks=[]), NOW_NS)
            is_used = True
    for run in store.runs.values():
        # Unreported ranks of a large world are slow to compute and test nothing more.
        run.only_ranks = tuple({rank for rank, _ in run.attempts})
        assert_closes(compute(run, NOW_NS, stale_seconds=30), elastic=True)
    return is_used


def report_seeds() -> list[bytes]:
    one = Process(user={"mine": "loader"}, flops_per_step=1e12, stage=2, group="dp0").between(none=1)
    whole = rank_report(one.steps(3, forward=1, mine=0.25, samples=8).saved().begun(forward=0.5))
    other = rank_report(Process(1).step(forward=1).killed())
    return [body_of(whole, other, version=version) for version in schema.VERSIONS]


# -- Messages of the stream


def stream(data: bytes) -> bool:
    """A push with a report that the aggregator decodes, refuses or leaves to a later version; an answer to a node; a
    heartbeat; a request that is forwarded, and its answer."""
    is_read = False
    with suppress(msgspec.DecodeError):
        messages.decode_answer(data)
    for decoder in (members._decoder, forwarding._requests, forwarding._parts):
        with suppress(msgspec.DecodeError):
            decode(decoder, data)
            is_read = True
    try:
        found = messages.decode_push(data)
        found.access().may("r1")
        return bool(schema.decode(found.report).ranks)
    except (msgspec.DecodeError, messages.TooNew, schema.SchemaError):
        return is_read


def stream_seeds() -> list[bytes]:
    whole = [messages.PushMessage("n", body, 5, "ci", "1f2e", ("r*",)) for body in report_seeds()]
    beat = msgspec.msgpack.encode(members.Heartbeat("b", [1, 2], [3]))
    part = msgspec.msgpack.encode(forwarding.AnswerPart(b"{}", 200, [(b"content-type", b"application/json")]))
    return [*(messages.encoded(one) for one in whole), beat, part]


# -- Run logs


def run_log(data: bytes) -> bool:
    """Accounts that close and are valid JSON, or a LogError that names the file."""
    path = _file("log.jsonl", data)
    try:
        runs = replay(path, stall_seconds=5)
    except LogError as error:
        assert path in str(error)
        return False
    for found in runs:
        assert_closes(found.account, elastic=True)
        json.dumps(document(found.account), allow_nan=False)
    return bool(runs)


def log_seeds() -> list[bytes]:
    example = (ROOT / "docs" / "example-run.jsonl").read_bytes().splitlines(keepends=True)
    text = b"".join(example[:40])
    stacks = b'"stack_samples":{"samples":4,"places":{"a":3}}'
    beat = b'{"kind":"beat","time":20,%b,"collectives":[{"group":"dp","calls":2,"seconds":0.5}]}\n' % stacks
    return [text, gzip.compress(text, mtime=0), text + beat]


# -- Traces


def trace(data: bytes) -> bool:
    """States of every step that sum to its wall time, or a TraceError that names the file."""
    path = _file("trace.json", data)
    try:
        found = analyze([path])
    except TraceError as error:
        assert str(error).startswith(path)
        return False
    for rank in found["ranks"]:
        for device in rank["devices"]:
            for row in device["steps"]:
                assert sum(row["states_ns"].values()) == row["wall_ns"]
    json.dumps(found, allow_nan=False)
    return True


def trace_seeds() -> list[bytes]:
    events = [step(1, 0, 100), launch(0, 1, 1), kernel(10, 50, correlation=1), op(0, 10), loader(60, 5)]
    events += [copy(62, 7), sync(70, 3), kernel(72, 9, name="ncclDevKernel_AllReduce", stream=9)]
    text = dumps({"traceEvents": events, "distributedInfo": {"rank": 1}}).encode()
    early = [launch(80, 1, 2), kernel(5, 9, correlation=2), sync(90, 3)]
    ahead = dumps({"traceEvents": [*events, *early], "traceName": "x"}).encode()
    broken = text.replace(b'"gemm"', b'"ge"mm"')
    return [text, gzip.compress(text, mtime=0), ahead, broken, text[:-40]]


# -- The page of a dcgm-exporter


def dcgm(data: bytes) -> bool:
    """A sample that the agent's own check accepts."""
    made = DcgmEndpoint(Options(dcgm_endpoint="http://x/"))
    page = parse_page(data.decode("utf-8", "replace"))
    gpus, problems = [made._gpu(device) for device in page.devices.values()], page.problems
    components = page.component_records()
    gpu_sample.check(gpu_sample.Sample("dcgm_endpoint", 0, gpus, problems=problems, components=components))
    return bool(gpus or components)


def dcgm_seeds() -> list[bytes]:
    labels = 'gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="n0"'
    values = {"GPU_TEMP": 54, "POWER_USAGE": 402.125, "FB_USED": 8, "XID_ERRORS": 79, "ECC_DBE_VOL_TOTAL": 1}
    lines = ["# HELP DCGM_FI_DEV_GPU_TEMP x", "# TYPE DCGM_FI_DEV_GPU_TEMP gauge"]
    lines += [f"DCGM_FI_DEV_{name}{{{labels}}} {value}" for name, value in values.items()]
    return ["\n".join(lines).encode()]


# -- Evidence of a hang


def flight(data: bytes) -> bool:
    """A document of a Flight Recorder's dump, or a TraceError that names the file."""
    path = _file("dump_0", data)
    try:
        dump = flight_dump.read(Path(path), 0)
    except TraceError as error:
        assert str(error).startswith(path)
        return False
    assert all(0 <= entry.call.bytes < 1 << 62 and entry.call.enter_ns >= 0 for entry in dump.entries)
    json.dumps(dump_document([dump], []), allow_nan=False)
    return True


def flight_seeds() -> list[bytes]:
    call = {"process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce", "state": "started"}
    call |= {
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "time_created_ns": 5,
        "time_discovered_completed_ns": None,
    }
    call |= {"input_sizes": [[3, 4]], "input_dtypes": ["Float"], "output_sizes": [], "retired": False}
    found = {"version": "2.10", "entries": [call], "pg_config": {"0": {"ranks": "[0, 1]"}}}
    transfer = {**call, "profiling_name": "nccl:send 0->1", "p2p_seq_id": 1, "is_p2p": True}
    end = {**call, "profiling_name": "nccl:coalesced", "input_sizes": [], "state": "completed"}
    more = {**found, "entries": [call, {**call, "input_sizes": [[5]]}, end, transfer]}
    return [
        *(json.dumps(one).encode() for one in (found, more)),
        pickle.dumps(found, 2),
        pickle.dumps(found, 4),
    ]


def ras(data: bytes) -> bool:
    """A document of an answer of NCCL's RAS, or a TraceError that names its source."""
    path = _file("ras.json", data)
    try:
        found = analyze_ras(path)
    except TraceError as error:
        assert str(error).startswith(path)
        return False
    json.dumps(found, allow_nan=False)
    return True


def ras_seeds() -> list[bytes]:
    late = nccl_ras.answer(nccl_ras.rank(0), nccl_ras.rank(1, calls=3))
    gone = nccl_ras.answer(nccl_ras.rank(0, abort_flag=True), gone=(nccl_ras.missing(1, dead=True),))
    return nccl_ras.recorded(late, gone)


TARGETS: dict[str, Callable[[bytes], bool]] = {
    target.__name__: target
    for target in (rank_page, step_blocks, report, stream, run_log, trace, dcgm, flight, ras)
}
SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "rank_page": page_seeds,
    "step_blocks": block_seeds,
    "report": report_seeds,
    "stream": stream_seeds,
    "run_log": log_seeds,
    "trace": trace_seeds,
    "dcgm": dcgm_seeds,
    "flight": flight_seeds,
    "ras": ras_seeds,
}


def clean() -> None:
    """Remove the files of this process."""
    for path in _folder().iterdir():
        os.unlink(path)
    _folder().rmdir()
