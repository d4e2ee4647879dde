"""Declared fields: device, dtype, FLOPs and the like, which may arrive at any time and in any order."""

from __future__ import annotations

from support.sdk.checks import check


def test_user_values_win_over_detected_ones(sdk):
    out = sdk(
        """
        session = goodput._session
        session.declare(device="H100", devices=8)                     # before anything has started
        goodput.start(run="r", dtype="fp8", gpu_hour_cost=2)
        emit(snapshot().identity)
        with goodput.step(): work()
        session.declare(dtype="bf16", flops_per_step=1e12, device="H200", world_size=4, gpu_power_watts=-1)
        emit(snapshot().identity)
        session.declare(flops_per_step=2e12, world_size=2, stage=None)
        goodput.start(run="r", dtype="int8", peak_flops_per_second=1e15, flops_per_step=3e12)
        goodput.start(flops_per_step=4e12)
    """
    )
    snapshot = check(out.snapshot())
    first, second = out.emitted
    assert (first["device"], first["devices"], first["dtype"], first["gpu_hour_cost"]) == (
        "H100",
        8,
        "fp8",
        2.0,
    )
    assert (second["dtype"], second["flops_per_step"], second["device"], second["world_size"]) == (
        "fp8", 1e12, "H200", 4,
    )  # fmt: skip
    last = snapshot.identity
    assert (last["dtype"], last["flops_per_step"], last["peak_flops_per_second"]) == ("fp8", 3e12, 1e15)
    assert last["world_size"] == 4 and last["gpu_power_watts"] is None
    assert len(out.messages()) == 1 and "gpu_power_watts" in out.errors


def test_progress_declares_the_total(sdk):
    """A wrong one is reported and leaves the rest as it was."""
    out = sdk("""
        goodput.progress("many")
        goodput.progress(100)
        goodput.progress(-1)
        with goodput.step(): work()
    """)
    assert out.snapshot().identity["total_steps"] == 100
    assert out.snapshot().steps_done == 1
    assert len(out.messages()) == 2 and out.errors.count("total_steps") == 2


def test_detected_total_waits_for_its_training(sdk):
    """It is detected before the first step opens the page, and after `stop` belongs to the next training."""
    out = sdk("""
        session = goodput._session
        session.declare(total_steps=60, microbatches=2)
        with goodput.step(): work()
        goodput.stop()
        session.declare(total_steps=30)
        goodput.start(run="second")
        with goodput.step(): work()
        goodput.stop()
        goodput.start(run="third")
        with goodput.step(): work()
    """)
    found = [
        page.identity["total_steps"]
        for page in sorted(out.snapshots(), key=lambda s: s.identity["start_mono_ns"])
    ]
    assert found == [60, 30, None]


def test_unchanged_fields_write_nothing(sdk):
    out = sdk("""
        from goodput.rank_page import page
        goodput.start(run="r", dtype="bf16")
        words = goodput._session.writer.words
        for i in range(3):
            goodput._session.declare(dtype="fp8", devices=1)
            goodput.start(run="r", dtype="fp8")
            goodput._session.set_rank(0, 1)
        emit(words[page.W_REVISION])
    """)
    assert out.emitted == [0] and not out.errors


def test_concurrent_calls_are_not_lost(sdk):
    """From a signal handler inside `start`, and from threads all at once."""
    out = sdk("""
        session = goodput._session
        opened = session._open_first
        def open(*arguments, **more):
            session.declare(dtype="bf16")                   # as a signal handler would
            session.start(gpu_hour_cost=2)
            for i in range(100): work()
            opened(*arguments, **more)
        session._open_first = open
        goodput.start(run="r")
        names = ("group", "device", "device_uuid")
        numbers = ("stage", "tensor", "microbatches", "total_steps")
        def declare(name, value): session.declare(**{name: value})
        threads = [threading.Thread(target=declare, args=(n, f"v{i}")) for i, n in enumerate(names)]
        threads += [threading.Thread(target=declare, args=(n, i + 1)) for i, n in enumerate(numbers)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """)
    found = out.snapshot().identity
    assert (found["dtype"], found["gpu_hour_cost"]) == ("bf16", 2.0)
    assert [found[n] for n in ("group", "device", "device_uuid")] == ["v0", "v1", "v2"]
    assert [found[n] for n in ("stage", "tensor", "microbatches", "total_steps")] == [1, 2, 3, 4]


def test_invalid_values_are_reported_and_ignored(sdk):
    junk = """
        class Bad:
            def __str__(self): raise RuntimeError("no")
            __repr__ = __float__ = __index__ = __str__
        for value in (Bad(), [], b"x", float("nan"), 10 ** 400, -1):
            goodput._session.declare(flops_per_step=value, devices=value, stage=value)
            goodput._session.set_rank(value, value)
        goodput._session.set_rank(Bad(), 8)
        goodput._session.declare(nonsense=1, run="x", rank=7, pid=3)
        goodput._session.declare(device=Bad(), dtype=Bad())
        goodput.start(rank=Bad(), world_size="x", flops_per_step="many", run=Bad())
        goodput.start(rank=Bad(), run=Bad(), directory=7)
        for i in goodput.steps(range(3)): work()
    """
    for early in ("", "        with goodput.phase('h2d'): pass\n"):
        out = sdk(early + junk)
        snapshot = check(out.snapshots()[-1])
        found = snapshot.identity
        assert (snapshot.steps_done, found["rank"], found["devices"], found["stage"]) == (3, 0, 1, None)
        assert 0 < len(out.messages()) <= 20
        out.paths()[-1].unlink()


def test_disabled_process_takes_no_fields(sdk):
    out = sdk("""
        goodput._session.declare(dtype="bf16"); goodput._session.set_rank(2, 4)
        if os.fork() == 0:
            goodput._session.declare(device="x")
            goodput.start(run="child"); goodput.stop(); os._exit(0)
        os.wait()
        goodput.start(run="parent")
    """)
    found = {s.identity["run"]: s.identity for s in out.snapshots()}
    assert (found["parent"]["rank"], found["parent"]["dtype"]) == (2, "bf16")
    assert (found["child"]["rank"], found["child"]["dtype"], found["child"]["device"]) == (0, "", "x")
    out = sdk(
        "goodput._session.declare(dtype='bf16'); goodput._session.set_rank(2, 4); goodput.start()",
        GOODPUT_DISABLE="1",
    )
    assert not out.errors and len(out.paths()) == 2
