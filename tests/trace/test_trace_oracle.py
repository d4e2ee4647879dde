"""Random small traces against an oracle that examines every event at every moment."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.trace.trace_maker import Number, copy, event, kernel, launch, loader, note, op, step, sync, write
from support.trace.trace_oracle import STATES, states

from goodput.trace import analyze

BASE = 1_712_195_495_519_689  # microseconds since 1970: a float would have lost the nanoseconds
ENGINE = {"compute": "gemm<float>(int)", "communication": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"}
TIMES = {"start": st.integers(0, 60), "length": st.integers(0, 25)}


@st.composite
def gpu_traces(draw):
    """Work on one or two devices, launched from two threads or an unknown one, and what threads do meanwhile."""
    events = []
    for number in range(1, 1 + draw(st.integers(1, 8))):
        what = draw(st.sampled_from(["compute", "compute", "communication", "copy"]))
        start, device = draw(st.integers(10, 70)), draw(st.sampled_from([0, 0, 1]))
        made = {"device": device, "stream": draw(st.sampled_from([7, 20])), "correlation": number}
        length = draw(st.integers(0, 20))
        build = copy if what == "copy" else kernel
        events.append(
            (what, build(start, length, **({} if what == "copy" else {"name": ENGINE[what]}), **made))
        )
        if draw(st.integers(0, 3)):
            at = draw(st.integers(0, start))
            events.append(
                ("launch", launch(at, draw(st.integers(0, 3)), number, tid=draw(st.sampled_from([1, 2]))))
            )
    return _placed([*events, *draw(_host_events()), *draw(_marks())])


@st.composite
def cpu_traces(draw):
    """Operators, collectives, loader waits and annotations on three threads, marks on the first or on none."""
    first = ("op", op(draw(st.integers(0, 60)), draw(st.integers(1, 25)), tid=1))
    return _placed([first, *draw(_host_events(collectives=True)), *draw(_marks())])


@st.composite
def _host_events(draw, collectives=False):
    names = {
        "op": lambda s, n, tid: op(s, n, tid=tid),
        "sync": lambda s, n, tid: sync(s, n, tid=tid),
        "loader": lambda s, n, tid: loader(s, n, tid=tid),
        "weak": lambda s, n, tid: note(s, n, "## forward ##", tid=tid),
        "call": lambda s, n, tid: op(s, n, "c10d::allreduce_", tid=tid),
        "wire": lambda s, n, tid: note(s, n, "gloo:all_reduce", tid=tid),
    }
    kinds = (
        ["op", "loader", "weak", "call", "wire"] if collectives else ["op", "sync", "loader", "weak", "call"]
    )
    chosen = draw(
        st.lists(st.tuples(st.sampled_from(kinds), *TIMES.values(), st.sampled_from([1, 2, 3])), max_size=8)
    )
    return [(what, names[what](start, length, tid)) for what, start, length, tid in chosen]


@st.composite
def _marks(draw):
    marks = draw(st.lists(st.tuples(*TIMES.values()), max_size=3))
    return [("step", step(i, start, length)) for i, (start, length) in enumerate(marks)]


def _placed(events: list) -> list[dict]:
    """Each event with its exact nanoseconds for the oracle, and microseconds as text for the file."""
    out = []
    for what, one in events:
        at, length = one["ts"], one["dur"]
        out.append({**one, "what": what, "at": at, "until": at + length})
        out[-1]["ts"], out[-1]["dur"] = Number(f"{BASE}.{at:03d}"), Number(f"0.{length:03d}")
    return out


def _check(path, events, order):
    shuffled = [
        {k: v for k, v in events[i].items() if k not in ("what", "at", "until", "launch")} for i in order
    ]
    if max(e["until"] for e in events) == min(e["at"] for e in events):
        return
    found = analyze([write(path, shuffled)])["ranks"][0]["devices"]
    want = states(events)
    assert [one["device"] for one in found] == list(want)
    for device in found:
        rows = [
            (s["name"], s["wall_ns"], s["states_ns"], s["communication_ns"], s["communication_hidden_ns"])
            for s in device["steps"]
        ]
        assert rows == want[device["device"]]
        assert device["total"]["wall_ns"] == sum(device["total"]["states_ns"].values())
        for state in STATES:
            assert device["total"]["states_ns"][state] == sum(row[2][state] for row in rows)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("oracle") / "trace.json"


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=gpu_traces(), data=st.data())
def test_devices_agree_with_the_oracle(path, events, data):
    _check(path, events, data.draw(st.permutations(range(len(events)))))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=cpu_traces(), data=st.data())
def test_cpu_agrees_with_the_oracle(path, events, data):
    _check(path, events, data.draw(st.permutations(range(len(events)))))


def test_oracle_agrees_with_a_hand_worked_trace():
    events = _placed(
        [
            ("compute", kernel(10, 10, ENGINE["compute"], correlation=1)),
            ("launch", launch(2, 2, 1)),
            ("communication", kernel(15, 15, ENGINE["communication"])),
            ("op", event("cpu_op", "aten::mm", 0, 4)),
        ]
    )
    expected = {"compute": 10, "communication": 10, "copy": 0, "loader": 0, "host": 0, "idle": 0}
    assert states(events) == {"GPU 0": [("whole trace", 20, expected, 15, 5)]}
    marked = _placed([("step", step(1, 0, 30))])
    assert states([*events, *marked]) == {"GPU 0": [("ProfilerStep#1", 30, {**expected, "host": 10}, 15, 5)]}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=gpu_traces(), behind=st.tuples(st.integers(0, 90), st.integers(0, 90)))
def test_clock_of_a_device_makes_no_difference(path, events, behind):
    """Its events begin earlier by any amount: the states are those at the least shift that launches prove."""
    launched = {e["args"]["correlation"]: e["at"] for e in events if e["what"] == "launch"}
    for device in (0, 1):
        own = [e for e in events if e["args"].get("device") == device]
        lead = [
            e["at"] - launched[e["args"]["correlation"]] for e in own if e["args"]["correlation"] in launched
        ]
        for e in own:
            later = min([*lead, behind[device]]) if lead else behind[device]
            e.update(at=e["at"] - later, until=e["until"] - later)
            written = e["at"] - (behind[device] - later)
            e["ts"] = Number(f"{BASE + written // 1000}.{written % 1000:03d}")
    _check(path, events, range(len(events)))
