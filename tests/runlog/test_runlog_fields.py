"""One wrong value in a line of a run log: its field is left out, the line is used, and lost lines are announced."""

from __future__ import annotations

import json

import pytest
from support.account.run_logs import BASE, HEAD, step

from goodput.account import document
from goodput.account.text import render
from goodput.cli import main
from goodput.runlog import replay
from goodput.runlog.lines import LineError, parse
from goodput.runlog.scan_results import IGNORED_MAX

STEP = {"kind": "step", "time": 6, "rank": 0, "attempt": 1, "step": 5, "seconds": 1}
# Of each kind: what it needs, and every optional field it may have, with a right value.
SAMPLES = {"gpu_compute_seconds": 2.0, "gpu_idle_seconds": 1.0, "gpu_joules": 5.0, "unmeasured_steps": 3}
NESTED = {
    "stack_samples": {"samples": 4, "places": {"train.py:load, line 7": 3}, "reason": ""},
    "collectives": [{"group": "dp", "operation": "all_reduce", "calls": 2, "bytes": 8, "seconds": 0.5}],
}
DECLARED = {
    "world_size": 2, "host": "n0", "device": "H100", "device_uuid": "u", "devices": 2, "group": "dp0", "stage": 1,
    "tensor": 1, "microbatches": 4, "dtype": "bf16", "flops_per_step": 1e12, "hardware_flops_per_step": 1e12,
    "peak_flops_per_second": 1e13, "ideal_samples_per_second": 10.0, "gpu_hour_cost": 2.5, "gpu_power_watts": 500.0,
    "submit_time": 0.0, "phase_states": {"augment": "loader"},
}  # fmt: skip
OPTIONAL = {
    "run": ({}, DECLARED),
    "attempt": ({"rank": 0, "attempt": 1}, {**DECLARED, "resume_step": 4}),
    "step": (
        {"rank": 0, "attempt": 1, "step": 5, "seconds": 1},
        {"samples": 512, "count": 2, "device_seconds": 0.5, "phases": {"forward": 0.5}},
    ),
    "phase": ({"rank": 0, "attempt": 1, "phase": "restore", "seconds": 1}, {}),
    "checkpoint": ({"rank": 0, "attempt": 1, "step": 4}, {"committed": True}),
    "beat": ({"rank": 0, "attempt": 1}, {"phase": "loader", "phases": {"loader": 1.0}, **NESTED, **SAMPLES}),
    "end": (
        {"rank": 0, "attempt": 1},
        {"reason": "finished", "phases": {"loader": 1.0}, **NESTED, **SAMPLES},
    ),
    "mark": ({"rank": 0, "attempt": 1}, {"text": "hello"}),
}
WHOLE = (
    "world_size",
    "devices",
    "stage",
    "tensor",
    "microbatches",
    "total_steps",
    "resume_step",
    "samples",
    "count",
    "unmeasured_steps",
)


def line(fields: dict) -> bytes:
    return json.dumps(fields).encode() + b"\n"


@pytest.mark.parametrize("kind", OPTIONAL)
def test_wrong_optional_field_keeps_the_line(kind):
    needed, optional = OPTIONAL[kind]
    for name in optional:
        for wrong in ([1], float("nan")):
            fields = {"kind": kind, "time": 6, **needed, **optional, name: wrong}
            found = parse(line(fields))
            right = parse(line({k: v for k, v in fields.items() if k != name}))
            assert found.warnings, name
            cautious = {"committed": False, "reason": "failed"}
            assert getattr(found, name) == cautious.get(name, getattr(right, name)) or wrong != [1]
            for other in {**needed, **optional}:
                assert other == name or getattr(found, other) == getattr(right, other), (name, other)


@pytest.mark.parametrize(
    "wrong",
    [
        {"stack_samples": {"samples": 4.0}},
        {"stack_samples": {"samples": 4.5, "places": {}}},
        {"stack_samples": {"samples": 4, "places": {"train.py": 1.5}}},
        {"collectives": [{"calls": 2.0}]},
        {"collectives": [{}, {"calls": -1}]},
        {"phases": {"loader": [1.5]}},
    ],
    ids=str,
)
def test_wrong_value_within_a_field_keeps_the_line(wrong):
    (name,) = wrong
    found = parse(line({"kind": "beat", "time": 6, "rank": 3, **NESTED, **wrong}))
    (warning,) = found.warnings or ()
    assert (found.rank, getattr(found, name) or None) == (3, None) and f"`{name}` is " in warning
    assert all(getattr(found, other) for other in NESTED if other != name)


@pytest.mark.parametrize("first", [b"-1", b"1.5", b'"3"', b"[]", b"null", b"7"])
def test_last_value_of_a_repeated_key_counts(first):
    for name, last in ((b"rank", b"3"), (b"run", b'"r"'), (b"step", b"5"), (b"samples", b"8")):
        text = b'{"kind":"step",%b:%b,"time":6,"seconds":1,%b}\n'
        fields = {b"rank": b"0", b"run": b'"a"', b"step": b"1", b"samples": b"2", name: last}
        others = b",".join(b'"%b":%b' % one for one in fields.items())
        found = parse(text % (b'"%b"' % name, first, others))
        assert getattr(found, name.decode()) == json.loads(last) and not found.warnings


def test_fields_that_place_a_line_are_needed():
    for kind, (needed, _) in OPTIONAL.items():
        for name in ("kind", "time", *needed):
            with pytest.raises(LineError):
                parse(line({"kind": kind, "time": 6, **needed, name: [1]}))


def test_integral_floats_are_whole_numbers():
    for kind, (needed, optional) in OPTIONAL.items():
        fields = {"kind": kind, "time": 6, **needed, **optional}
        floats = {k: float(v) if type(v) is int and k != "time" else v for k, v in fields.items()}
        floats |= {"rank": 0.0} if "rank" in needed else {}
        found, right = parse(line(floats)), parse(line(fields))
        assert not found.warnings
        for name in fields:
            if name != "time":
                assert getattr(found, name) == getattr(right, name), (kind, name)
                assert type(getattr(found, name)) is type(getattr(right, name)), (kind, name)
    broken = parse(line({**STEP, "samples": 512.5}))
    assert broken.samples == 0 and "`samples` is 512.5, want a whole number" in broken.warnings[0]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"samples": 512.5}, "`samples` is 512.5, want a whole number, found one with a fraction or exponent; it is left out"),
        ({"world_size": 1.5}, "`world_size` is 1.5, want a whole number, found one with a fraction or exponent; it is left out"),
        ({"collectives": [{"calls": 1.5}]}, '`collectives` is [{"calls": 1.5}], want a whole number, found one with a fraction or exponent at `collectives[0].calls`; it is left out'),
        ({"device": "x" * 300}, f'`device` is "{"x" * 39} ..., want a text of length <= 255; it is left out'),
    ],
)  # fmt: skip
def test_wrong_value_is_named_with_its_place(fields, text):
    kind = "attempt" if "collectives" not in fields and "samples" not in fields else "beat"
    base = {"kind": kind, "time": 6, "rank": 0} if kind != "beat" or "samples" not in fields else STEP
    assert parse(line({**base, **fields})).warnings == [text]


def test_line_that_is_no_object_is_shown():
    with pytest.raises(LineError, match=r"it is \[1\], want an object {...}, found a list"):
        parse(b"[1]")


def test_wrong_phase_keeps_the_other_phases():
    found = parse(line({**STEP, "phases": {"forward": 0.5, "loader": "slow", "h2d": None, "backward": 0.25}}))
    assert found.phases == {"forward": 0.5, "backward": 0.25}


def test_unknown_value_is_no_problem():
    found = parse(line({**STEP, "samples": None, "device_seconds": None}))
    assert (found.samples, found.warnings or []) == (0, [])


def test_run_may_be_a_number():
    assert parse(line({**STEP, "run": 4711})).run == "4711"


def test_not_a_number_in_an_unknown_field(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(HEAD + b"".join(step(i + 1, i, ',"loss":NaN,"samples":4') for i in range(5)))
    (found,) = replay(str(log))
    assert found.account.samples == 20
    assert found.problems.ignored["field 'loss' of step"] == 5


def test_float_samples_lose_no_step(tmp_path):
    """Every step of a log with `"samples": 512.0`: no step and no sample is lost."""
    log = tmp_path / "log"
    log.write_bytes(HEAD + b"".join(step(i + 1, i, ',"samples":512.0') for i in range(50)))
    (found,) = replay(str(log))
    assert (found.account.samples, found.problems.count) == (50 * 512, 0)
    assert document(found.account)["step_lines"] is None


@pytest.mark.parametrize(("bad", "incomplete"), [(1, False), (2, True)])
def test_lost_step_lines_make_the_account_incomplete(tmp_path, capsys, bad, incomplete):
    """1 and 2 of 100 step lines: at 1 % the account still counts as whole."""
    log = tmp_path / "log"
    lines = [step(i + 1, i) for i in range(100 - bad)]
    lines += [step(100, 99).replace(b'"seconds":1', b'"seconds":"long"')] * bad
    log.write_bytes(HEAD + b"".join(lines))
    status = main(["replay", str(log), "--html", str(tmp_path / "page.html")])
    shown = capsys.readouterr()
    assert status == int(incomplete)
    head = shown.out.splitlines()[2]
    assert (
        head.startswith("  incomplete: 2 of 100 step lines of the log (2.0 %) cannot be used") == incomplete
    )
    assert f"{bad} of 100 step lines cannot be used" in shown.err
    (found,) = replay(str(log))
    steps = document(found.account)["step_lines"]
    assert (steps["read"], steps["unusable"], steps["incomplete"]) == (100, bad, incomplete)
    assert steps["first"] == f'line {103 - bad}: `seconds` is "long", want a number, found a text'
    assert '"step_lines":{"read":100' in (tmp_path / "page.html").read_text()


def test_lines_that_are_no_json_count_as_lost(tmp_path):
    """The text of Python dictionaries, which many a script writes: no step is read, and the account says so."""
    log = tmp_path / "log"
    log.write_text(BASE.decode() + "".join(f"{dict(STEP, time=7 + i, step=5 + i)}\n" for i in range(20)))
    (found,) = replay(str(log))
    text = render(document(found.account), full=True)
    assert "incomplete: 20 of 25 step lines of the log (80.0 %)" in text


def test_steps_beyond_ten_minutes_late_are_lost_unless_doubled(tmp_path):
    """Two steps an hour late count as lost; a file written twice loses none."""
    log = tmp_path / "log"
    late, rest = [step(i + 1, i) for i in (3, 4)], [step(i + 1, i) for i in range(100) if i not in (3, 4)]
    log.write_bytes(HEAD + b"".join([*rest, step(3700, 100), step(3701, 101), *late]))
    (found,) = replay(str(log))
    assert document(found.account)["step_lines"]["unusable"] == 2
    lines = [*rest[:3], *late, *rest[3:], step(3700, 100), step(3701, 101)]
    log.write_bytes(HEAD + b"".join(lines + lines))
    (found,) = replay(str(log))
    assert document(found.account)["step_lines"] is None


def test_unknown_names_are_counted_up_to_a_bound(tmp_path):
    """The most frequent ones come first, and of these that are as frequent the order is by name."""
    log = tmp_path / "log"
    unknown = [f'"f{i}":0' for i in range(IGNORED_MAX + 5)]
    lines = [step(i + 1, i, f',{text},"loss":0' if i else f",{text}") for i, text in enumerate(unknown)]
    log.write_bytes(HEAD + b"".join(lines))
    (found,) = replay(str(log))
    ignored = found.problems.ignored
    assert len(ignored) == IGNORED_MAX + 1 and sum(ignored.values()) == 2 * len(lines) - 1
    assert ignored["others"] == len(lines) - IGNORED_MAX + 1
    names = sorted(name for name in ignored if name not in ("others", "field 'loss' of step"))
    assert [name for name, _ in found.problems.most_ignored(5)] == [
        "field 'loss' of step",
        "others",
        *names[:3],
    ]
