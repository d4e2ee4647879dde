"""A disk that is full under the stream: pushes are refused, and what was acknowledged is there when it has room again."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest
from msgspec.structs import replace
from support.aggregator.reports import Process, body_of, rank_report
from support.servers.nats_server import NatsCluster

from goodput.aggregator.stream import messages
from goodput.aggregator.stream.connection import Stream, StreamSettings
from goodput.aggregator.stream.errors import StreamError
from goodput.aggregator.stream.partitions import partition_of
from goodput.aggregator.stream.publisher import Publisher
from goodput.aggregator.stream.reader import PartitionReader
from goodput.wire import schema

DISK_MIB, STREAM_BYTES = 16, 1 << 28


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, of a few MiB."""
    at = tmp_path / "disk"
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "goodput-test", at]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield at
    subprocess.run(["umount", "--lazy", at], check=True)


def push_of(number: int) -> bytes:
    """Some 40 KB."""
    report = rank_report(Process(number, world_size=1 << 12).steps(1, forward=1), "r1")
    marks = [schema.EventRow(at, "mark", 1, 0, "x" * 200) for at in range(1, 201)]
    return body_of(replace(report, events=marks))


@pytest.mark.slow_faults
def test_full_disk_under_the_stream_loses_nothing(disk):
    """What the worker acknowledged is read whole after the disk has room again, by a server that was started anew."""
    ballast = disk / "ballast"

    async def until_full(stream: Stream) -> list[int]:
        publisher, taken = Publisher(stream), []
        ballast.write_bytes(b"x" * (8 << 20))
        for number in range(4000):
            try:
                await publisher.accept(push_of(number))
            except StreamError:
                return taken
            taken.append(number)
        raise AssertionError("the disk did not fill up")

    async def scenario(work):
        stream = Stream(StreamSettings(tuple(cluster.urls), 1, replicas=1, bytes_max=STREAM_BYTES))
        await asyncio.wait_for(stream.connect(), 30)
        try:
            return await work(stream)
        finally:
            await stream.close()

    async def read_all(stream: Stream) -> list[int]:
        ack = await Publisher(stream).accept(push_of(4095))
        assert ack.accepted == 1, "it takes pushes again"
        reader, found = PartitionReader(stream, partition_of("r1", 1), 0), []
        while part := await reader.next():
            reports = [schema.decode(messages.decode_push(one.body).report) for one in part]
            found += [rank.identity.rank for report in reports for rank in report.ranks]
        await reader.close()
        return found

    with NatsCluster(disk, file_bytes=1 << 30) as cluster:
        taken = asyncio.run(scenario(until_full))
        assert len(taken) > 10
        ballast.unlink()
        cluster.kill(0)
        cluster.start(0)
        cluster.wait(0)
        found = asyncio.run(scenario(read_all))
    # A push that failed may be there, too: it is pushed again, and changes nothing.
    assert set(taken) | {4095} <= set(found)
