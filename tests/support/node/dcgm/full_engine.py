"""A host engine that knows everything that the driver watches: a GPU, two of its instances, an NVSwitch, a Grace CPU."""

from __future__ import annotations

import os
import socket
import time

from support.node.dcgm.by_hand import BY_HAND
from support.node.dcgm.standin import CONNECTION_NOT_VALID, CPU, GPU, GPU_INSTANCE, SWITCH, DCGMError, Engine

from goodput_exporters.gpu.nvidia import dcgm_components
from goodput_exporters.gpu.nvidia import dcgm_field_table as table

UUID, INSTANCES = "GPU-5d0c2e1f-1111-2222-3333-444455556666", {4: (0, 3), 5: (0, 5)}
WATCHED = {*table.FAST, *table.SLOW, *table.RARE, *table.PROFILING, *table.PIPES, *table.TOTALS}
# Errors by place and by link are their own numbers; 0x84 is throttling by power and by the power brake.
VALUES = {number: raw for number, (raw, _, _) in BY_HAND.items() if number in WATCHED}
VALUES |= {number: number for number in WATCHED if table.NAME < number not in VALUES}
VALUES |= {table.EVENT_REASONS: 0x84, table.FABRIC_HEALTH: 0b0010_1010, table.XID: 0}
OF_INSTANCE = {250: 40_448, 251: 40_000, 252: 448, 253: 0, 1001: 0.5, 1004: 0.25, table.NAME: "3g.40gb"}
COMPONENTS = {
    kind: {
        field.number: 0.5
        if field.key.startswith("activity/")
        else float(field.number)
        if field.double
        else field.number
        for field in dcgm_components.TABLE
        if field.kind == kind and "{link}" not in field.key
    }
    for kind in ("nvswitch", "cpu")
}
# Values that a device can have, where the number of the field is none; the CPU's fields are in degrees and watts.
COMPONENTS["nvswitch"] |= {858: 58, 859: 90, 860: 95, 864: 1}
COMPONENTS["cpu"] |= {1110: 61, 1111: 95, 1112: 105}


class ListeningEngine(Engine):
    """One that answers while something accepts connections at GOODPUT_DCGM_HOSTENGINE."""

    def check(self):
        host, _, port = os.environ["GOODPUT_DCGM_HOSTENGINE"].rpartition(":")
        try:
            socket.create_connection((host, int(port)), 10).close()
        except OSError:
            raise DCGMError(CONNECTION_NOT_VALID) from None


def listening_engine() -> Engine:
    return engine(ListeningEngine())


def engine(made: Engine | None = None) -> Engine:
    made = made or Engine()
    made.add_gpu(0, UUID)
    now_us = time.time_ns() // 1000
    made.set(GPU, 0, now_us, {**VALUES, table.NVML_INDEX: 0})
    # After the driver has started: an XID of before is none of the agent's.
    made.set(GPU, 0, now_us + 3_600_000_000, {table.XID: 79})
    made.instances = INSTANCES
    for instance in INSTANCES:
        made.set(GPU_INSTANCE, instance, now_us, OF_INSTANCE)
    made.others = {SWITCH: [0], CPU: [0]}
    made.set(SWITCH, 0, now_us, COMPONENTS["nvswitch"])
    made.set(CPU, 0, now_us, COMPONENTS["cpu"])
    return made
