"""One line of a run log: its fields, checked, with times as whole nanoseconds.

Times are never floats, so they are exact to the nanosecond however large they are.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from goodput.account.collectives.operation_sums import NO_SUMS, OperationSums, sums_of
from goodput.log_lines import HARDWARE
from goodput.wire.identity import clean_text
from goodput.wire.operation_row import UNKNOWN, OperationRow
from goodput.wire.sampled_stacks import NO_STACKS, PLACES_MAX, SAMPLES_MAX, SampledStacks

TIME_NS_MAX = 1 << 62
LINE_BYTES_MAX = 1 << 20
COUNT_MAX = 1 << 40
RANK_MAX = (1 << 18) - 1  # the largest world, as all ranks below a seen one are expected
KINDS = frozenset(("run", "attempt", "step", "phase", "checkpoint", "beat", "end", "run_end", "look", "mark"))
_NOTHING = Raw(b"")
# Required fields besides `kind` and `time`. Without `rank` it is rank 0.
_REQUIRED = {"step": ("step", "seconds"), "phase": ("phase", "seconds"), "checkpoint": ("step",)}


class LineError(ValueError):
    """What is wrong with a line."""


_SECONDS_MAX = TIME_NS_MAX / 1e9
Rank = Annotated[int, Meta(ge=0, le=RANK_MAX)]
_Step = Annotated[int, Meta(ge=-1, le=1 << 61)]
AttemptNumber = Annotated[int, Meta(ge=0, le=1 << 20)]
Samples = Annotated[int, Meta(ge=0, le=1 << 61)]
Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
_Place = Annotated[int, Meta(ge=0, le=1 << 24)]
Seconds = Annotated[float, Meta(ge=0, lt=_SECONDS_MAX)]
_Rate = Annotated[float, Meta(gt=0, lt=1e30)]
Name = Annotated[str, Meta(max_length=255)]
_OWN_FIELDS = ("time_ns", "seconds_ns", "device_ns", "step_number", "warnings")


class StackSamples(msgspec.Struct):
    """Sampled stacks of a rank in no phase, cumulative, in a beat or an end."""

    samples: Annotated[int, Meta(ge=0, lt=SAMPLES_MAX)] = 0
    places: dict[Name, Annotated[int, Meta(ge=0, lt=SAMPLES_MAX)]] = {}
    reason: Name = ""


class Operation(msgspec.Struct):
    """What an operation of a process group has cost a rank so far, in a beat or an end."""

    group: Name = ""
    operation: Name = ""
    calls: Annotated[int, Meta(ge=0, lt=1 << 61)] = 0
    bytes: Annotated[int, Meta(ge=0, lt=1 << 61)] = 0
    seconds: Seconds = 0.0
    startup_seconds: Seconds = 0.0
    issue_seconds: Seconds = 0.0
    group_size: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    hidden_seconds: Seconds | None = None
    hidden_seconds_max: Seconds | None = None
    local_ranks: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    link_bytes_per_second: Annotated[int, Meta(ge=0, lt=1 << 61)] = 0
    queued: bool = False
    device_seconds: Seconds | None = None
    device_bytes: Annotated[int, Meta(ge=0, lt=1 << 61)] = 0


# Fields of our own have no name that a log uses, so that a log cannot set them.
class Line(msgspec.Struct, gc=False, rename=lambda name: f"internal {name}" if name in _OWN_FIELDS else name):
    """All fields of all kinds, with their bounds; the last five are set by `parse`."""

    kind: str
    time: Raw = _NOTHING
    rank: Rank = 0
    attempt: AttemptNumber | None = None
    step: _Step | None = None
    seconds: Seconds | None = None
    phases: dict[str, float] | None = None
    samples: Samples = 0
    count: Count = 1
    device_seconds: Seconds | None = None
    cut: bool = False
    unmeasured_steps: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    gpu_compute_seconds: Seconds | None = None
    gpu_idle_seconds: Seconds | None = None
    gpu_joules: Annotated[float, Meta(ge=0, lt=TIME_NS_MAX / 1e3)] | None = None
    stack_samples: StackSamples | None = None
    collectives: Annotated[list[Operation], Meta(max_length=64)] | None = None
    run: Name | int | None = None
    phase: Name | None = None
    phase_seconds: Seconds | None = None
    committed: bool = True
    reason: str = "finished"
    over: str | None = None
    over_at: Raw = _NOTHING
    resume_step: _Step | None = None
    restored: bool | None = None
    world_size: Annotated[int, Meta(ge=1, le=1 << 18)] | None = None
    without_gpu: bool = False
    host: Name | None = None
    device: Name | None = None
    device_uuid: Name | None = None
    devices: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None
    group: str | int | None = None
    role: Name | None = None
    worker: Name | None = None
    stage: _Place | None = None
    tensor: _Place | None = None
    microbatches: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    total_steps: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    dtype: Name | None = None
    flops_unknown: Name | None = None
    flops_per_step: _Rate | None = None
    hardware_flops_per_step: _Rate | None = None
    peak_flops_per_second: _Rate | None = None
    ideal_samples_per_second: _Rate | None = None
    gpu_hour_cost: _Rate | None = None
    gpu_power_watts: _Rate | None = None
    reached_flops_per_second: _Rate | None = None
    reached_bus_bytes_per_second: _Rate | None = None
    h2d_bytes_per_second: _Rate | None = None
    reached_h2d_bytes_per_second: _Rate | None = None
    core_wait_ratio: Annotated[float, Meta(gt=0, le=1)] | None = None
    # On the log's clock, where 0 and negative times are valid.
    submit_time: Annotated[float, Meta(gt=-_SECONDS_MAX, lt=_SECONDS_MAX)] | None = None
    clock_moved_seconds: Annotated[float, Meta(gt=-_SECONDS_MAX, lt=_SECONDS_MAX)] | None = None
    phase_states: dict[str, str] | None = None
    text: str | None = None
    time_ns: int = 0
    seconds_ns: int = 0
    device_ns: int = 0
    step_number: int = -1  # `step`, -1 without one
    warnings: list[str] | None = None  # optional fields that were left out, and why


_NoNumber = Annotated[int, Meta(ge=1, le=0)]


class KnownLine(
    Line,
    forbid_unknown_fields=True,
    gc=False,
    rename=lambda name: f"internal {name}" if name in _OWN_FIELDS else name,
):
    """Nearly all lines: their fields are known and right, and none has the name of one of our own."""

    time_ns: _NoNumber = 0
    seconds_ns: _NoNumber = 0
    device_ns: _NoNumber = 0
    step_number: _NoNumber = -1
    warnings: Annotated[list[str], Meta(min_length=1, max_length=0)] = None  # pyright: ignore


FIELDS = frozenset(Line.__struct_fields__) - {*_OWN_FIELDS}
_decode = msgspec.json.Decoder(Line).decode
_decode_known = msgspec.json.Decoder(KnownLine).decode
_decode_keys = msgspec.json.Decoder(dict[str, Raw]).decode
# A line is used without its wrong fields other than these and those that its kind needs: they place it.
_STRICT_FIELDS = ("kind", "rank", "attempt", "run")
SHOWN_CHARS_MAX = 40  # of a wrong value, in an error
# What stands in for a wrong value where the default would be a guess to the run's advantage.
_CAUTIOUS = {"committed": (b"false", "counts as false"), "reason": (b'"failed"', "counts as failed")}
_BY_PHASE = {"phases": float, "phase_states": str}


def parse(raw: bytes) -> Line:
    """Decode and check one line, a KnownLine if it has no other fields. Raises LineError."""
    try:
        line = _decode_known(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        line = _parse_other(raw)
    if b"\\" in raw or not raw.isascii() or type(line) is not KnownLine:
        _clean_texts(line)
    kind, step, seconds = line.kind, line.step, line.seconds
    if kind not in KINDS:
        return line
    if kind != "step" or step is None or seconds is None:
        for name in _REQUIRED.get(kind, ()):
            if getattr(line, name) is None:
                raise LineError(f"a {kind} needs `{name}`")
    if step is not None:
        if step < 0 and kind == "step":
            raise LineError(f"`step` is {step}, want a whole number >= 0")
        line.step_number = step
    if seconds is not None:
        line.seconds_ns = round(seconds * 1e9)
    if line.device_seconds is not None:
        line.device_ns = round(line.device_seconds * 1e9)
    if type(line.run) is int:
        line.run = str(line.run)
    line.time_ns = to_ns(bytes(line.time), kind != "run")
    return line


_TEXTS = (
    *("run", "phase", "reason", "over", "host", "device", "device_uuid", "group", "role", "worker", "dtype"),
    *("flops_unknown", "text", "phases", "phase_states"),
)


def _clean_texts(line: Line) -> None:
    """Replace what is not printable in the texts of a line, as a terminal would act on it."""
    for name in _TEXTS:
        value = getattr(line, name)
        if isinstance(value, str) and not value.isprintable():
            setattr(line, name, clean_text(value, len(value)))
        elif isinstance(value, dict) and not all(map(str.isprintable, value)):
            setattr(line, name, {clean_text(key, len(key)): entry for key, entry in value.items()})


def _parse_other(raw: bytes) -> Line:
    """Decode a line that has unknown or wrong fields, or is no strict JSON."""
    try:
        try:
            try:
                return _decode(raw)
            except msgspec.ValidationError as error:
                return _without_wrong_fields(
                    raw, error
                )  # Raises again where a later field is no strict JSON.
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _repaired_line(raw, error)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise LineError(str(error)) from None


def _without_wrong_fields(raw: bytes, error: msgspec.ValidationError) -> Line:
    """Decode a line without its wrong fields, if it can be used without them. `error` is the first of them."""
    if raw.lstrip()[:1] != b"{":
        raise LineError(f"it is {_shown(raw.strip())}, {_plain(str(error))}")
    warnings: list[str] = []
    fields = _decode_keys(raw)
    kind = msgspec.json.decode(fields.get("kind", b"null"))
    if isinstance(kind, str) and kind not in KINDS:
        return Line(kind)
    needed = _REQUIRED.get(kind, ()) if isinstance(kind, str) else ()
    while True:
        # Also at first: of a key that occurs twice, the last value counts.
        try:
            line = _decode(msgspec.json.encode(fields))
            line.warnings = warnings
            return line
        except msgspec.ValidationError as wrong:
            error = wrong
        found = _WHERE.search(str(error))
        if found is None or found[1] not in fields:
            raise LineError(_plain(str(error)))
        name = found[1]
        value = bytes(fields.pop(name))
        whole = _as_whole_number(value, error)
        if whole is not None:
            fields[name] = Raw(whole)
        elif value != b"null":
            text = f"`{name}` is {_shown(value)}, {_plain(str(error))}{_within(name, error)}"
            if name in needed or (
                name in _STRICT_FIELDS and (name != "run" or kind not in ("run", "attempt"))
            ):
                raise LineError(text)
            text += f"; it {_CAUTIOUS[name][1] if name in _CAUTIOUS else 'is left out'}"
            fields |= _usable_part(name, value)
            warnings.append(text)


def _as_whole_number(value: bytes, error: msgspec.ValidationError) -> bytes | None:
    """A float that is a whole number, such as 512.0, as an integer where one is wanted; else None."""
    if "`int" not in str(error) or "got `float`" not in str(error) or not _NUMBER.fullmatch(value):
        return None
    exact = Decimal(value.decode())
    is_whole = abs(exact) < TIME_NS_MAX * 4 and exact == exact.to_integral_value()
    return str(int(exact)).encode() if is_whole else None


def _usable_part(name: str, value: bytes) -> dict[str, Raw]:
    """What is kept of a field with a wrong value: the right entries of a table by phase, or a cautious value."""
    if name in _CAUTIOUS:
        return {name: Raw(_CAUTIOUS[name][0])}
    if name not in _BY_PHASE or value[:1] != b"{":
        return {}
    right = {}
    for key, entry in _decode_keys(value).items():
        try:
            right[key] = msgspec.json.decode(entry, type=_BY_PHASE[name])
        except msgspec.ValidationError:
            continue
    return {name: Raw(msgspec.json.encode(right))}


def _repaired_line(raw: bytes, error: Exception) -> Line:
    """Decode a line that is no strict JSON: NaN and Infinity are null, what is no text is replaced.

    Raises `error` where something else is wrong with it.
    """
    repaired = _repaired(raw)
    if repaired is None:
        raise error
    try:
        line = _decode(repaired)
    except msgspec.ValidationError as another:
        line = _without_wrong_fields(repaired, another)
    text = f"{error}; what is no text is replaced"
    if _NO_NUMBER.search(raw):
        text = "NaN and Infinity are no JSON; such values are left out"
    elif any(map(_is_lone_surrogate, _ESCAPE.finditer(raw.decode(errors="replace")))):
        text = "half of a surrogate pair is no text; it is replaced"
    line.warnings = [text, *(line.warnings or ())]
    return line


def _repaired(raw: bytes) -> bytes | None:
    """The line as strict JSON, with its numbers as they are written; None where it cannot be repaired."""
    try:
        text = _ESCAPE.sub(_without_lone_surrogate, raw.decode(errors="replace"))
        fields = json.loads(
            text,
            strict=False,
            parse_constant=lambda _: None,
            parse_int=lambda number: Raw(number.encode()),
            parse_float=lambda number: Raw(number.encode()),
        )
        return msgspec.json.encode(fields) if type(fields) is dict else None
    except (ValueError, TypeError, OverflowError):
        return None


# One escape, or the two of a surrogate pair, so that an escaped backslash begins no other escape.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)")
_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def _is_lone_surrogate(escape: re.Match[str]) -> bool:
    return _LONE_SURROGATE.fullmatch(escape[0]) is not None


def _without_lone_surrogate(escape: re.Match[str]) -> str:
    return "\\ufffd" if _is_lone_surrogate(escape) else escape[0]


_NO_NUMBER = re.compile(rb"\b(NaN|Infinity)\b")


def _shown(value: bytes) -> str:
    """A value as an error shows it."""
    text = value.decode(errors="replace")
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]} ..."


def _within(name: str, error: Exception) -> str:
    """Where in a field's value it is wrong: " at `collectives[0].calls`"; "" of a value that is wrong as a whole."""
    found = _PLACE.search(str(error))
    return f" at `{found[1]}`" if found and found[1] != name else ""


def _plain(text: str) -> str:
    """msgspec's message with JSON's terms for Python's types, without the place."""
    text = _TYPES.sub(lambda found: _WORDS.get(found[1].split(" | ")[0], found[0]), text.split(" - at ")[0])
    text = text.replace("Expected", "want").replace(", got", ", found")
    return re.sub(
        "(want a whole number.*), found a number$", r"\1, found one with a fraction or exponent", text
    )


_WHERE = re.compile(r"at `\$\.(\w+)")
_PLACE = re.compile(r"at `\$\.([^`]*)`")
_NUMBER = re.compile(rb"[-+.0-9eE]+")  # and no list or object that has one
_TYPES = re.compile(r"`([a-z| ]+)`")
_WORDS = {
    "object": "an object {...}",
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "str": "a text",
}


def is_step_line(raw: bytes) -> bool:
    """Whether a line that `parse` refused was meant as a step."""
    return _STEP_KIND.search(raw) is not None


# In either quotes, since the line may be no JSON.
_STEP_KIND = re.compile(rb"""["']kind["']\s*:\s*["']step["']""")


def unknown_fields(raw: bytes) -> set[str]:
    """Unknown field names of a line that `parse` accepted."""
    try:
        keys = _decode_keys(raw).keys()
    except (msgspec.DecodeError, UnicodeDecodeError):
        keys = _decode_keys(_repaired(raw) or b"{}").keys()
    return set() if keys <= FIELDS else set(keys) - FIELDS


def to_ns(raw: bytes, needed: bool = True, name: str = "time") -> int:
    """A JSON number of seconds as whole ns, exactly; digits below a nanosecond are cut off. Raises LineError."""
    whole, _, part = raw.partition(b".")
    if len(whole) <= 20 and whole.lstrip(b"-").isdigit() and (not part or part.isdigit()):
        ns = int(whole + (part + b"000000000")[:9])
    elif raw in (b"", b"null"):
        if needed:
            raise LineError(f"`{name}` is missing")
        return 0
    else:
        try:
            exact = Decimal(raw.decode())
        except (InvalidOperation, UnicodeDecodeError):
            text = raw[:40].decode(errors="replace")
            raise LineError(f"`{name}` is {text}, want a number of seconds") from None
        # 1e999999999 must not become an integer: it would fill memory.
        ns = int(exact * 10**9) if -TIME_NS_MAX < exact < TIME_NS_MAX else TIME_NS_MAX
    if not -TIME_NS_MAX < ns < TIME_NS_MAX:
        raise LineError(
            f"`{name}` is {raw[:40].decode(errors='replace')}: further away than 146 years; is it in seconds?"
        )
    return ns


def hardware(line: Line) -> dict[str, int]:
    """The GPU samples of a beat or an end, as Attempt.hardware."""
    values = ((key, getattr(line, name), digits) for name, key, digits in HARDWARE)
    return {key: round(value * 10**digits) for key, value, digits in values if value}


def stacks(line: Line) -> SampledStacks:
    """The sampled stacks of a beat or an end, as Attempt.stacks: the places with the most samples."""
    if line.stack_samples is None:
        return NO_STACKS
    found = line.stack_samples
    most = sorted(found.places.items(), key=lambda entry: (-entry[1], entry[0]))[:PLACES_MAX]
    places = {clean_text(place, 255): count for place, count in most}
    return SampledStacks(places, max(found.samples, sum(places.values())), clean_text(found.reason, 255))


def collectives(line: Line) -> OperationSums:
    """What operations of process groups have cost, of a beat or an end, as Attempt.collectives."""
    if not line.collectives:
        return NO_SUMS
    return sums_of(
        OperationRow(
            clean_text(one.group, 255),
            clean_text(one.operation, 255),
            *(one.calls, one.bytes, round(one.seconds * 1e9), round(one.startup_seconds * 1e9)),
            round(one.issue_seconds * 1e9),
            one.group_size,
            *(UNKNOWN if s is None else round(s * 1e9) for s in (one.hidden_seconds, one.hidden_seconds_max)),
            local=one.local_ranks,
            link_rate=one.link_bytes_per_second,
            queued=int(one.queued),
            device_ns=UNKNOWN if one.device_seconds is None else round(one.device_seconds * 1e9),
            device_bytes=one.device_bytes,
        )
        for one in line.collectives
    )
