"""Calls and variables that the SDK cannot take are said once, by name, and nothing is raised."""

from __future__ import annotations

import pytest

from goodput.sdk.startup import variables


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("phase('forward', state='loader')", "phase('forward', state='loader'): its state is productive, which stays"),
        ("phase('h2d', 3)", "phase('h2d', state=3): its state is h2d, which stays"),
        ("mark(3)", "mark: want text, not int; str() of it is recorded"),
        ("mark(None)", "mark: want text, not NoneType; str() of it is recorded"),
        ("progress(None)", "progress(None): want the number of steps of the training; ignored"),
        ("start(rank='x')", "start(rank='x'): want a whole number; ignored"),
        ("start(attempt=1.5)", "start(attempt=1.5): want a whole number; ignored"),
        ("step('a')", "step('a'): want a whole number from 0; taken as the next step"),
        ("step(-2)", "step(-2): want a whole number from 0; taken as the next step"),
        ("stop('oops')", "stop('oops'): want \"finished\" or \"failed\"; taken as finished"),
    ],
)  # fmt: skip
def test_wrong_call_is_said_once(sdk, call, said):
    out = sdk(f"""
    goodput.start(run="r")
    goodput.{call}
    goodput.{call}
    """)
    assert out.errors.splitlines() == [f"goodput: {said}"]


def test_right_calls_say_nothing(sdk):
    out = sdk("""
    goodput.start(run="r", rank=0)
    goodput.start(rank=0)
    for _ in range(2):
        with goodput.phase("forward", state="productive"): pass
        with goodput.phase("loader", "loader"): pass
        with goodput.phase("mine", state="h2d"): pass
        with goodput.phase("mine"): pass
        with goodput.step(): pass
    goodput.mark("text")
    goodput.stop("failed")
    """)
    assert out.errors == ""


def test_second_state_of_a_phase_is_said(sdk):
    out = sdk("""
    with goodput.phase("mine", state="h2d"): pass
    with goodput.phase("mine", state="loader"): pass
    """)
    assert out.errors.splitlines() == [
        "goodput: phase('mine', state='loader'): its state is h2d, which stays"
    ]


def test_unknown_variable_is_said_by_the_process_that_is_measured(sdk):
    out = sdk("goodput.start()\ngoodput.start()", GOODPUT_RNA="x", GOODPUT_NCCL="off")
    assert out.errors.splitlines() == [
        "goodput: GOODPUT_RNA is no variable of goodput; did you mean GOODPUT_RUN?",
        "goodput: GOODPUT_NCCL='off': want 0, or calls; calls and transfers are recorded",
    ]
    assert sdk("pass", GOODPUT_RNA="x").errors == ""
    assert sdk("goodput.start(rank=1, world_size=2)", GOODPUT_RNA="x").errors == ""


@pytest.mark.parametrize(("value", "lines"), [("no", 1), ("1", 0), ("0", 0)])
def test_word_that_disables_is_said_at_exit(sdk, value, lines):
    out = sdk("goodput.start(rank='x')" if value == "no" else "goodput.start()", GOODPUT_DISABLE=value)
    said = "goodput: GOODPUT_DISABLE='no': want 0 or 1; taken as 1: nothing is measured"
    assert out.errors.splitlines() == [said] * lines


@pytest.mark.parametrize("name", sorted(variables.SWITCHES))
def test_switches_take_0_and_1(name):
    assert variables.problems({name: "0"}) == variables.problems({name: "1"}) == []
    assert variables.problems({name: "yes"}) == []
    assert variables.problems({name: "off"}) == [
        f"{name}='off': want 0 or 1; taken as {variables.SWITCHES[name]}"
    ]


def test_variables_of_kubernetes_services_are_not_ours():
    environ = {
        "GOODPUT_SERVICE_HOST": "10.0.0.1",
        "GOODPUT_SERVICE_PORT_HTTP": "9471",
        "GOODPUT_PORT": "tcp://10.0.0.1:9471",
        "GOODPUT_AGGREGATOR_PORT_9471_TCP_ADDR": "10.0.0.1",
    }
    assert variables.problems(environ) == []


def test_values_that_are_checked_together():
    assert variables.problems({"GOODPUT_WORLD_SIZE": "8", "GOODPUT_RANK": "1"}) == []
    assert variables.problems({"GOODPUT_WORLD_SIZE": "8"}) == [
        "GOODPUT_WORLD_SIZE='8': ignored without GOODPUT_RANK"
    ]
    assert variables.problems({"GOODPUT_DEEP_LOOK_RANK": "all"}) == []
    assert "want a rank" in variables.problems({"GOODPUT_DEEP_LOOK_RANK": "first"})[0]
    assert variables.problems({"GOODPUT_" + "\x1b" * 99: ""})[0].startswith("GOODPUT_????")


def test_every_variable_that_is_read_is_known():
    """A new one has to be added to the list, else its users are told that it is none."""
    import re

    from support.paths import ROOT

    read = set()
    for folder in ("src", "exporters"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            read |= set(re.findall(r"environ(?:\.get\(|\[)\"(GOODPUT_[A-Z_]+)\"", text))
    assert len(read) > 15 and read - variables.KNOWN == set()
