"""What PyTorch's traces and Flight Recorder dumps call operations and element types, as goodput's records call them."""

from __future__ import annotations

import re
from functools import lru_cache

POINT_TO_POINT = frozenset(("send", "recv"))
# No rank leaves these before all have entered, so ranks leave them together.
TOGETHER = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
# Operations whose bytes, a rank's part, are what it gets; of the others what it puts in.
RECEIVED = frozenset(("recv", "scatter", "reduce_scatter"))
# By c10's name of a scalar type: the name, and the bytes of an element.
DTYPES = {
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8),
    "Int": ("int32", 4),
    "Short": ("int16", 2),
    "Char": ("int8", 1),
    "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
    "UInt16": ("uint16", 2),
    "UInt32": ("uint32", 4),
    "UInt64": ("uint64", 8),
    "ComplexHalf": ("complex32", 4),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
    "Float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "Float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "Float8_e8m0fnu": ("float8_e8m0fnu", 1),
}
# By the name of a C++ type, as `Input type` has it (record_shapes=True).
CPP_BYTES = {
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
}
NAME_MAX = 40
_DECORATION = re.compile(r"_(base|oop|coalesced|tensor|into|sparse)(?=_|$)")
_WORDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_allv": "all_to_all",
    "all_to_all_single": "all_to_all",
    "sendrecv": "send and recv",
}
_KERNEL = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|send|recv|reduce)",
    re.IGNORECASE,
)


@lru_cache(1024)
def operation_of(name: str) -> str:
    """The operation that a call is named after: `_allgather_base`, `all_gather_into_tensor_coalesced`: all_gather."""
    plain = _DECORATION.sub("", name.strip("_ ").lower())[:NAME_MAX]
    return _WORDS.get(plain, plain)


@lru_cache(1024)
def operation_of_kernel(name: str) -> str:
    """The operation of a collective's kernel by its name, "other" for an unknown name."""
    found = _KERNEL.search(name.split("(")[0])
    return operation_of(found[1]) if found else "other"
