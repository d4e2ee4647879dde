"""NCCL's profiler interface as ctypes structures, transcribed field by field from NVIDIA/nccl's headers
src/include/plugin/profiler/profiler_v4.h, profiler_v5.h and profiler_v6.h: the oracle of src/goodput/nccl/interface.h.

call = Table("plugin.so", 5); context, mask = call.init(hash=7, size=2, rank=0); handle = call.start(context, ...)
"""

from __future__ import annotations

import ctypes as c

text, pointer, u8, u64, size_t = c.c_char_p, c.c_void_p, c.c_uint8, c.c_uint64, c.c_size_t
_COLL = [
    *(("seqNumber", u64), ("func", text), ("sendBuff", pointer), ("recvBuff", pointer), ("count", size_t)),
    *(("root", c.c_int), ("datatype", text), ("nChannels", u8), ("nWarps", u8), ("algo", text)),
    ("proto", text),
]
_P2P = [
    *(("func", text), ("buff", pointer), ("datatype", text), ("count", size_t), ("peer", c.c_int)),
    ("nChannels", u8),
]
_PARENT = [("parentGroup", pointer)]
_COMMON = {
    "proxyOp": [
        *(("pid", c.c_int), ("channelId", u8), ("peer", c.c_int), ("nSteps", c.c_int)),
        *(("chunkSize", c.c_int), ("isSend", c.c_int)),
    ],
    "proxyStep": [("step", c.c_int)],
    "kernelCh": [("channelId", u8), ("pTimer", u64)],
    "netPlugin": [("id", c.c_int64), ("data", pointer)],
}
_V5 = {
    "groupApi": [("graphCaptured", c.c_bool), ("groupDepth", c.c_int)],
    "collApi": [
        *(("func", text), ("count", size_t), ("datatype", text), ("root", c.c_int), ("stream", pointer)),
        ("graphCaptured", c.c_bool),
    ],
    "p2pApi": [
        *(("func", text), ("count", size_t), ("datatype", text), ("stream", pointer)),
        ("graphCaptured", c.c_bool),
    ],
    "kernelLaunch": [("stream", pointer)],
    "coll": _COLL + _PARENT,
    "p2p": _P2P + _PARENT,
    **_COMMON,
}
_V6 = {
    **_V5,
    "kernelStep": [
        *(("channelId", u8), ("isSend", u8), ("peer", u8), ("step", c.c_uint32), ("size", c.c_uint32)),
        *(("startTs", u64), ("readyTs", u64)),
    ],
    "ceColl": [
        *(("seqNumber", u64), ("func", text), ("sendBuff", pointer), ("recvBuff", pointer)),
        *(("count", size_t), ("root", c.c_int), ("datatype", text), ("syncStrategy", text)),
        *(("intraBatchSync", c.c_bool), ("batchSize", c.c_uint32), ("numBatches", c.c_uint32)),
        *(("ceSeqNum", c.c_uint32), ("stream", pointer)),
    ],
    "ceCollSync": [("isComplete", c.c_bool), ("nRanks", c.c_int)],
    "ceCollBatch": [("numOps", c.c_int), ("totalBytes", size_t), ("useIntraSync", c.c_bool)],
}
MEMBERS = {4: {"coll": _COLL, "p2p": _P2P, **_COMMON}, 5: _V5, 6: _V6}

# ncclProfile...: bits of the mask.
KINDS = {
    "coll": 1 << 1,
    "p2p": 1 << 2,
    "proxyOp": 1 << 3,
    "proxyStep": 1 << 4,
    "kernelCh": 1 << 6,
    "groupApi": 1 << 8,
    "collApi": 1 << 9,
    "p2pApi": 1 << 10,
    "kernelLaunch": 1 << 11,
    "ceColl": 1 << 12,
}
# ncclProfiler...: states.
STATES = {
    "SendGPUWait": 8,
    "SendWait": 9,
    "RecvWait": 10,
    "RecvFlushWait": 11,
    "RecvGPUWait": 12,
    "SendPeerWait_v4": 20,
    "KernelChStop": 22,
}


def _structure(name: str, fields: list) -> type[c.Structure]:
    return type(name, (c.Structure,), {"_fields_": fields})


def descriptor(version: int) -> type[c.Structure]:
    """ncclProfilerEventDescr_vN_t; its union is the field `of`."""
    members = [(name, _structure(name, fields)) for name, fields in MEMBERS[version].items()]
    union = type("Of", (c.Union,), {"_fields_": members})
    kind = u8 if version == 4 else u64
    fields = [("type", kind), ("parentObj", pointer), ("rank", c.c_int), ("of", union)]
    return _structure(f"Descriptor{version}", fields)


class Table:
    """ncclProfiler_vN_t of a loaded plugin."""

    def __init__(self, library: c.CDLL, version: int):
        self.version, self.descriptor = version, descriptor(version)
        out, mask, log = c.POINTER(pointer), c.POINTER(c.c_int), pointer
        if version == 4:
            arguments = [out, mask, text, u64, c.c_int, c.c_int, c.c_int, log]
        else:
            arguments = [out, u64, mask, text, c.c_int, c.c_int, c.c_int, log]
        result = c.c_int
        fields = [
            ("name", text),
            ("init", c.CFUNCTYPE(result, *arguments)),
            ("startEvent", c.CFUNCTYPE(result, pointer, out, c.POINTER(self.descriptor))),
            ("stopEvent", c.CFUNCTYPE(result, pointer)),
            ("recordEventState", c.CFUNCTYPE(result, pointer, c.c_int, pointer)),
            ("finalize", c.CFUNCTYPE(result, pointer)),
        ]
        self.table = _structure("Table", fields).in_dll(library, f"ncclProfiler_v{version}")

    def init(self, *, hash: int, size: int, rank: int, name: bytes | None = None):
        """(context, mask)"""
        context, mask = pointer(), c.c_int(-1)
        if self.version == 4:
            given = c.byref(context), c.byref(mask), name, hash, 1, size, rank, None
        else:
            given = c.byref(context), hash, c.byref(mask), name, 1, size, rank, None
        assert self.table.init(*given) == 0
        return context.value, mask.value

    def start(self, context, kind: str, parent=None, **fields):
        """The handle of a new event of this kind with these fields."""
        one, handle = self.descriptor(), pointer(0xDEAD)
        one.type, one.parentObj, one.rank = KINDS[kind], parent, 0
        for name, value in fields.items():
            setattr(getattr(one.of, kind), name, value)
        assert self.table.startEvent(context, c.byref(handle), c.byref(one)) == 0
        return handle.value

    def state(self, handle, state: str, value: int) -> None:
        """A new state with its one argument, of which all have their first 8 bytes (transSize or pTimer)."""
        assert self.table.recordEventState(handle, STATES[state], c.byref(u64(value))) == 0

    def stop(self, handle) -> None:
        assert self.table.stopEvent(handle) == 0

    def finalize(self, context) -> None:
        assert self.table.finalize(context) == 0
