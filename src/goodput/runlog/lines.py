"""One line of a run log: its fields, checked, with times as whole nanoseconds.

Times are never floats, so they are exact to the nanosecond however large they are.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

import msgspec
from msgspec import Raw

from goodput.wire.schema import RATES

TIME_NS_MAX = 1 << 62
LINE_BYTES_MAX = 1 << 20
COUNT_MAX = 1 << 40
RANK_MAX = (1 << 18) - 1  # the largest world, as all ranks below a seen one are expected
KINDS = ("run", "attempt", "step", "phase", "checkpoint", "beat", "end", "run_end", "look", "mark")
_NOTHING = Raw(b"")
# Required fields besides `kind`. Without `rank` it is rank 0.
_REQUIRED = {
    "run": (),
    "step": ("time", "step", "seconds"),
    "phase": ("time", "phase", "seconds"),
    "checkpoint": ("time", "step"),
}


class LineError(ValueError):
    """What is wrong with a line."""


class Line(msgspec.Struct):
    """All fields of all kinds; the last five are set by `parse`."""

    kind: str
    time: Raw = _NOTHING
    rank: int = 0
    attempt: int | None = None
    step: int | None = None
    seconds: float | None = None
    phases: dict[str, float] | None = None
    samples: int = 0
    count: int = 1
    device_seconds: float | None = None
    unmeasured_steps: int = 0
    gpu_compute_seconds: float | None = None
    gpu_idle_seconds: float | None = None
    gpu_joules: float | None = None
    run: str | None = None
    phase: str | None = None
    committed: bool = True
    reason: str = "finished"
    over: str | None = None
    resume_step: int | None = None
    world_size: int | None = None
    host: str | None = None
    device: str | None = None
    device_uuid: str | None = None
    devices: int | None = None
    group: str | int | None = None
    stage: int | None = None
    tensor: int | None = None
    microbatches: int | None = None
    dtype: str | None = None
    flops_per_step: float | None = None
    hardware_flops_per_step: float | None = None
    peak_flops_per_second: float | None = None
    ideal_samples_per_second: float | None = None
    gpu_hour_cost: float | None = None
    gpu_power_watts: float | None = None
    submit_time: float | None = None
    phase_states: dict[str, str] | None = None
    text: str | None = None
    time_ns: int = 0
    seconds_ns: int = 0
    device_ns: int = 0
    step_number: int = -1  # `step`, -1 without one
    warnings: list[str] | None = None  # optional fields that were left out, and why


FIELDS = frozenset(Line.__struct_fields__[:-5])
_decode = msgspec.json.Decoder(Line).decode
_decode_keys = msgspec.json.Decoder(dict[str, Raw]).decode
# Cumulative GPU samples in a beat or an end: field, key of Attempt.hardware, digits after the point.
HARDWARE = (
    ("gpu_compute_seconds", "compute_ns", 9),
    ("gpu_idle_seconds", "idle_ns", 9),
    ("gpu_joules", "energy_mj", 3),
)
# The time of submission is on the log's clock, where 0 and negative times are valid.
_RATES = tuple(name for name in RATES if name != "submit_time")
_RANGES = {
    "rank": (0, RANK_MAX),
    "attempt": (0, 1 << 20),
    "step": (-1, 1 << 61),
    "samples": (0, 1 << 61),
    "count": (1, COUNT_MAX),
    "unmeasured_steps": (0, COUNT_MAX),
    "resume_step": (-1, 1 << 61),
    "world_size": (1, 1 << 18),
    "devices": (1, 1 << 16),
    "stage": (0, 1 << 24),
    "tensor": (0, 1 << 24),
    "microbatches": (1, 1 << 24),
}


def parse(raw: bytes) -> Line:
    """Decode and check one line. Raises LineError."""
    try:
        line = _decode(raw)
    except msgspec.ValidationError as error:
        line = _without_wrong_types(raw, error)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise LineError(str(error)) from None
    kind = line.kind
    if kind == "step":
        if line.step is None or line.seconds is None:
            raise LineError("a step needs `step` and `seconds`")
        line.seconds_ns = _length(line.seconds, "seconds")
        if line.step < 0 or line.step > 1 << 61 or not 0 <= line.rank <= RANK_MAX or line.samples < 0:
            raise LineError("`step`, `rank` or `samples` is out of range")
        line.step_number = line.step
        if line.device_seconds is not None:
            line.device_ns = _length(line.device_seconds, "device_seconds")
    elif kind not in KINDS:
        return line
    else:
        _check(line)
    if line.attempt is not None and not 0 <= line.attempt <= 1 << 20:
        raise LineError(f"`attempt` is {line.attempt}, want 0 to {1 << 20}")
    line.time_ns = to_ns(bytes(line.time), kind != "run")
    return line


def _without_wrong_types(raw: bytes, error: msgspec.ValidationError) -> Line:
    """Decode a run or attempt line without the fields that have values of a wrong type."""
    warnings = []
    try:
        fields = _decode_keys(raw)
        while True:
            found = _WHERE.search(str(error))
            name = found and found[1]
            if name not in fields or name == "kind" or bytes(fields.get("kind", b"")) not in _LENIENT_KINDS:
                raise LineError(_plain(str(error)))
            warnings.append(f"`{name}` is left out: {_plain(str(error).split(' - at')[0])}")
            del fields[name]
            try:
                line = _decode(msgspec.json.encode(fields))
                line.warnings = warnings
                return line
            except msgspec.ValidationError as another:
                error = another
    except msgspec.DecodeError:
        raise LineError(_plain(str(error))) from None


# These lines are used without a wrong field; any other line is not used.
_LENIENT_KINDS = (b'"run"', b'"attempt"')


def _plain(text: str) -> str:
    """msgspec's message with JSON's terms for Python's types."""
    for name, word in _WORDS:
        text = text.replace(f"`{name}`", word)
    return re.sub(
        r" - at `\$\.?(.*)`$", r" in `\1`", text.replace("Expected", "want").replace(", got", ", found")
    )


_WHERE = re.compile(r"at `\$\.(\w+)")
_WORDS = (
    *(("object", "an object {...}"), ("array", "a list"), ("null", "null"), ("bool", "true or false")),
    *(("float | null", "a number"), ("int | null", "a whole number"), ("str | null", "a text")),
    *(("float", "a number"), ("int", "a whole number"), ("str", "a text"), ("int | str | null", "a text")),
    *(("str | int | null", "a text"), ("object | null", "an object {...}")),
)


def unknown_fields(raw: bytes) -> set[str]:
    """Unknown field names of a line that `parse` accepted."""
    keys = _decode_keys(raw).keys()
    return set() if keys <= FIELDS else set(keys) - FIELDS


def to_ns(raw: bytes, needed: bool = True) -> int:
    """A JSON number of seconds as whole ns, exactly; digits below a nanosecond are cut off. Raises LineError."""
    whole, _, part = raw.partition(b".")
    if raw[:1] in b'"tf[{' and raw:
        raise LineError(f"`time` is {raw[:40].decode(errors='replace')}, want a number of seconds")
    if len(whole) > 20:
        ns = TIME_NS_MAX  # rejected without converting so many digits
    elif part.isdigit() and whole.lstrip(b"-").isdigit():
        ns = int(whole + (part + b"000000000")[:9])
    elif not part and whole.lstrip(b"-").isdigit():
        ns = int(whole) * 10**9
    elif not raw or raw == b"null":
        if needed:
            raise LineError("`time` is missing")
        return 0
    else:
        try:
            exact = Decimal(raw.decode())
            # 1e999999999 must not become an integer: it would fill memory.
            ns = int(exact * 10**9) if -TIME_NS_MAX < exact < TIME_NS_MAX else TIME_NS_MAX
        except (InvalidOperation, ValueError, UnicodeDecodeError):
            raise LineError(
                f"`time` is {raw[:40].decode(errors='replace')}, want a number of seconds"
            ) from None
    if not -TIME_NS_MAX < ns < TIME_NS_MAX:
        raise LineError(
            f"`time` is {raw[:40].decode(errors='replace')}: further away than 146 years; is it in seconds?"
        )
    return ns


def _length(seconds: float, name: str) -> int:
    if not 0 <= seconds < TIME_NS_MAX / 1e9:
        what = "negative" if seconds < 0 else "too large"
        raise LineError(f"`{name}` is {seconds!r}, which is {what}")
    return round(seconds * 1e9)


def _reject(line: Line, name: str, text: str) -> None:
    """Leave the field out of a run or attempt line; reject any other line."""
    if line.kind not in ("run", "attempt") or name in ("rank", "attempt"):
        raise LineError(text)
    setattr(line, name, None)
    line.warnings = [*(line.warnings or ()), f"{text}; it is left out"]


def hardware(line: Line) -> dict[str, int]:
    """The GPU samples of a beat or an end, as Attempt.hardware."""
    values = ((key, getattr(line, name), digits) for name, key, digits in HARDWARE)
    return {key: round(value * 10**digits) for key, value, digits in values if value}


def _check(line: Line) -> None:
    if line.step is not None:
        line.step_number = line.step
    for name in _REQUIRED.get(line.kind, ("time",)):
        if getattr(line, name) in (None, _NOTHING):
            raise LineError(f"a {line.kind} needs `{name}`")
    for name, (least, most) in _RANGES.items():
        value = getattr(line, name)
        if value is not None and not least <= value <= most:
            _reject(line, name, f"`{name}` is {value}, want {least} to {most}")
    for name in _RATES:
        value = getattr(line, name)
        if value is not None and not 0 < value < 1e30:
            _reject(line, name, f"`{name}` is {value!r}, want a positive number")
    for name, _, digits in HARDWARE:
        value = getattr(line, name)
        if value is not None and not 0 <= value < TIME_NS_MAX / 10**digits:
            # The rest of the line is still used.
            setattr(line, name, None)
            line.warnings = [*(line.warnings or ()), f"`{name}` is {value!r}, want 0 or more; it is left out"]
    if line.submit_time is not None and not abs(line.submit_time) < TIME_NS_MAX / 1e9:
        raise LineError(f"`submit_time` is {line.submit_time!r}: further away than 146 years")
    if line.seconds is not None:
        line.seconds_ns = _length(line.seconds, "seconds")
    for name in ("run", "host", "device", "device_uuid", "dtype", "phase"):
        text = getattr(line, name)
        if text is not None and len(text) > 255:
            raise LineError(f"`{name}` has {len(text)} characters, 255 at most")
