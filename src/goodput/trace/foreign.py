"""Recognises files of other kinds, so that the error names them and what to do instead.

PyTorch's execution trace and rocprof's outputs look like traces, but have no device times or no operators."""

from __future__ import annotations

RECORD = "record a trace with torch.profiler and export_chrome_trace"
_EXECUTION_TRACE = (
    "a PyTorch execution trace (ExecutionTraceObserver, Chakra): operators and their inputs, without the times of a "
    f"device; {RECORD}"
)
_FLIGHT = (
    "dump of PyTorch's Flight Recorder, and no trace; for its directory there is goodput analyze --flight DIR"
)
_PICKLE = "\udc80"  # the first byte of a pickle since protocol 2
_ROCPROF = f"of rocprof, which has no operators, steps or loader; {RECORD}"


def by_fields(name: str, seen: set[str]) -> str | None:
    """What a JSON document with the field `name`, after the fields `seen`, is; None if nothing known."""
    if name == "nodes" and "schema" in seen:
        return _EXECUTION_TRACE
    if "version" in seen and name in ("pg_config", "comm_lib_version", "entries"):
        return f"a {_FLIGHT}"
    return f"the JSON output {_ROCPROF}" if name == "rocprofiler-sdk-tool" else None


def by_beginning(text: str) -> str | None:
    """What a file that is no JSON is, from its first characters; None if nothing known."""
    line = text.lstrip().partition("\n")[0]
    if text.startswith(_PICKLE):
        return (
            f"a {_FLIGHT}" if "pg_config" in text or "entries" in text else f"a pickle, perhaps a {_FLIGHT}"
        )
    if text.startswith("GOODPUT\0"):
        return (
            "a rank page of goodput, and no trace; for its directory there is goodput report --directory DIR"
        )
    if text.startswith("SQLite format 3"):
        return f"a SQLite database, as rocprof (rocpd) and Nsight Systems write it; {RECORD}"
    if "," in line and any(
        head in line for head in ("KernelName", "Kernel_Name", "BeginNs", "Start_Timestamp")
    ):
        return f"a CSV output {_ROCPROF}"
    return None


def by_arguments(args) -> str | None:
    """What a trace is that has an event with these arguments; None if nothing known."""
    return f"a JSON trace {_ROCPROF}" if isinstance(args, dict) and "BeginNs" in args else None
