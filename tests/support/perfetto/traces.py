"""Perfetto traces read with Perfetto's own schema, strictly, as its trace processor would; and logs of ranks whose clocks
differ."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema


class Slice(NamedTuple):
    begin_ns: int
    end_ns: int
    name: str
    notes: dict
    depth: int


@dataclass
class Trace:
    """By "group/track": slices in order, instants as (ns, name, notes), counters as (ns, value)."""

    slices: dict[str, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    instants: dict[str, list[tuple]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[str, list[tuple]] = field(default_factory=lambda: defaultdict(list))
    unix_ns: int | None = None


def read_trace(content: bytes) -> Trace:
    """Asserts what the trace processor needs: known tracks and names, slices that nest, in order."""
    packets = schema.Trace.FromString(content).packet
    assert packets[0].sequence_flags & schema.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    found, names, tracks = Trace(), {}, {}
    open_slices, last = defaultdict(list), defaultdict(int)
    for packet in packets:
        assert not any(map(len, map(UnknownFieldSet, (packet, packet.track_event, packet.track_descriptor))))
        assert packet.trusted_packet_sequence_id == 1
        for name in packet.interned_data.event_names:
            assert name.iid not in names
            names[name.iid] = name.name
        if packet.HasField("clock_snapshot"):
            clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
            assert clocks[6] == 0
            found.unix_ns = clocks[1]
        if packet.HasField("track_descriptor"):
            one = packet.track_descriptor
            assert one.uuid not in tracks and (not one.parent_uuid or one.parent_uuid in tracks)
            parent = f"{tracks[one.parent_uuid]}/" if one.parent_uuid else ""
            tracks[one.uuid] = parent + (one.process.process_name or one.name)
        if packet.HasField("track_event"):
            assert packet.sequence_flags & schema.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            _event(found, packet, tracks[packet.track_event.track_uuid], names, open_slices, last)
    assert not any(open_slices.values()), "slices that do not end"
    for slices in found.slices.values():
        slices.sort(key=lambda one: (one.begin_ns, one.depth))
    return found


def _event(found: Trace, packet, track: str, names: dict, open_slices: dict, last: dict) -> None:
    event, at_ns = packet.track_event, packet.timestamp
    name = event.name or names.get(event.name_iid)
    notes = {one.name: getattr(one, one.WhichOneof("value")) for one in event.debug_annotations}
    if event.type == event.TYPE_COUNTER:
        found.counters[track].append((at_ns, event.double_counter_value))
    elif event.type == event.TYPE_INSTANT:
        found.instants[track].append((at_ns, name, notes))
    else:
        assert at_ns >= last[track], "events of a track that are out of order"
        last[track] = at_ns
        if event.type == event.TYPE_SLICE_BEGIN:
            assert name
            open_slices[track].append((at_ns, name, notes))
        else:
            begin_ns, name, notes = open_slices[track].pop()
            found.slices[track].append(Slice(begin_ns, at_ns, name, notes, len(open_slices[track])))


class World(NamedTuple):
    """A log, and by (rank, step) when its exchange really ended."""

    path: str
    exits: dict[tuple[int, int], float]


def world(
    path: Path,
    *,
    offsets: list[float],
    drifts: list[float] | None = None,
    steps: int = 120,
    set_at: int | None = None,
    rest: float = 0.0,
    seed: int = 1,
) -> World:
    """Ranks that leave each exchange together, then run their optimizer; each tells the time of its own clock.

    `drifts` are seconds per second; at step `set_at` the last rank's clock is set forward by 30 s. `rest` is the mean of
    a time of random length that each rank spends in no phase after the exchange.
    """
    random, ranks = np.random.default_rng(seed), len(offsets)
    drifts = drifts or [0.0] * ranks
    now, jump = 1.0 + 0.3 * np.arange(ranks), np.zeros(ranks)

    def shown_at(rank: int) -> float:
        return round(1.7e9 + now[rank] * (1 + drifts[rank]) + offsets[rank] + jump[rank], 9)

    lines: list[dict] = [{"kind": "run", "run": "r", "world_size": ranks}]
    lines += [
        {"kind": "attempt", "time": shown_at(rank), "rank": rank, "attempt": 1, "host": f"n{rank}"}
        for rank in range(ranks)
    ]
    now += 5.0
    exits = {}
    for step in range(steps):
        jump[-1] += 30.0 * (step == set_at)
        began, own = now.copy(), 0.1 + random.exponential(0.05, ranks)
        left = (began + own).max() + 0.03
        optimizer, idle = (
            random.exponential(0.02, ranks),
            random.exponential(rest, ranks) if rest else np.zeros(ranks),
        )
        now = left + optimizer + idle
        for rank in range(ranks):
            exits[rank, step] = left
            waited = left - began[rank] - own[rank]
            phases = {"optimizer": optimizer[rank], "communication": waited, "forward": own[rank]}
            place = {"kind": "step", "time": shown_at(rank), "rank": rank, "attempt": 1, "step": step}
            lines.append({**place, "seconds": now[rank] - began[rank], "phases": phases, "samples": 32})
    lines += [{"kind": "end", "time": shown_at(rank), "rank": rank, "attempt": 1} for rank in range(ranks)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return World(str(path), exits)
