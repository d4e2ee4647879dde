"""Small traces with hand-worked numbers, explained in the comments beside them."""

import pytest
from support.trace.trace_maker import (
    HOST,
    Number,
    copy,
    event,
    kernel,
    launch,
    loader,
    note,
    op,
    step,
    sync,
    write,
)

from goodput.trace import analyze, analyze_one, combine
from goodput.trace.text import render

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def one(tmp_path, events, **around):
    """The only device of a trace."""
    (device,) = analyze([write(tmp_path / "trace.json", events, **around)])["ranks"][0]["devices"]
    return device


def us(states: dict) -> dict:
    """States that have time, in microseconds."""
    assert all(type(ns) is int for ns in states.values())
    return {state: ns / 1000 for state, ns in states.items() if ns}


def test_each_state_once(tmp_path):
    events = [
        step(7, 0, 1000),
        loader(0, 100),  # loader 0-100
        op(100, 90),  # host 100-200: in an operator, then in Python until the launch brings work
        launch(190, 5, 1),
        kernel(200, 300, correlation=1),  # compute 200-500
        launch(300, 5, 2),
        kernel(400, 200, ALLREDUCE, stream=20, correlation=2),  # 400-500 hidden, 500-600 exposed
        launch(305, 5, 3),
        copy(550, 100, stream=21, correlation=3),  # 550-600 hidden, 600-650 exposed
        launch(310, 5, 4),
        kernel(670, 100, correlation=4),  # idle 650-670: it was queued; compute 670-770
        sync(800, 200),  # idle 770-1000: no work follows, and the host waits or does nothing
    ]
    device = one(tmp_path, events)
    (row,) = device["steps"]
    want = {"compute": 400, "communication": 100, "copy": 50, "loader": 100, "host": 100, "idle": 250}
    assert us(row["states_ns"]) == want
    assert row["wall_ns"] == 1_000_000
    assert (row["communication_ns"], row["communication_hidden_ns"]) == (200_000, 100_000)
    assert (row["copy_ns"], row["copy_hidden_ns"], row["kernel_ns"]) == (100_000, 50_000, 500_000)
    assert row["overlap_percent"] == 50
    want = {"count": 3, "late_count": 1, "longest_ns": 230_000}
    assert device["gaps"] == {**want, "late_ns": 200_000, "queued_ns": 20_000, "unknown_ns": 230_000}
    assert device["launches_known"] == 4
    tops = [(row["name"], row["kind"], row["count"], row["ns"]) for row in device["top"]]
    assert tops[0] == ("gemm", "compute", 2, 400_000)
    assert tops[1] == (ALLREDUCE, "communication", 1, 200_000)


def test_kernels_on_several_streams_count_once(tmp_path):
    # Union 0-150 on three streams; sums of durations would say 260.
    events = [
        step(1, 0, 200),
        kernel(0, 100),
        kernel(50, 100, stream=8),
        kernel(60, 60, stream=9),
        op(150, 50),
    ]
    device = one(tmp_path, events)
    assert us(device["total"]["states_ns"]) == {"compute": 150, "host": 50}
    assert device["top"][0]["ns"] == 260_000


def test_nested_spans_count_once_and_loader_wins(tmp_path):
    # CPU only. The loader collates 10-40 with operators of its own; those are the loader's.
    events = [
        step(1, 0, 100),
        note(0, 100, "## outer ##"),
        note(5, 50, "## inner ##"),
        loader(10, 30),
        op(15, 20, "aten::stack"),
        op(50, 30, "aten::linear"),
        op(55, 10, "aten::addmm"),
        op(57, 2, "aten::copy_"),
    ]
    device = one(tmp_path, events)
    assert device["device"] == "CPU"
    # 0-10 and 40-50 Python before an operator, 80-100 inside an annotation.
    assert us(device["total"]["states_ns"]) == {"compute": 30, "loader": 30, "host": 40}
    own = {row["name"]: row["ns"] for row in device["top"]}
    assert own["aten::linear"] == 20_000 and own["aten::addmm"] == 8_000 and own["aten::copy_"] == 2_000


def test_without_ids_the_host_activity_decides(tmp_path):
    events = [
        step(1, 0, 100),
        kernel(0, 10),
        op(10, 20),  # host 10-30
        loader(30, 20),  # loader 30-50
        note(50, 10, "## forward ##"),  # host 50-60
        sync(60, 10),  # idle 60-70
        kernel(80, 20),  # and 70-80: nobody knows
    ]
    device = one(tmp_path, events)
    assert us(device["total"]["states_ns"]) == {"compute": 30, "loader": 20, "host": 30, "idle": 20}
    assert device["launches_known"] == 0 and device["gaps"]["unknown_ns"] == 70_000


def test_queued_work_is_idle_not_host(tmp_path):
    events = [
        step(1, 0, 100),
        launch(0, 2, 1),
        launch(2, 2, 2),
        op(4, 90),  # The host is busy with what comes later.
        kernel(5, 45, correlation=1),
        kernel(70, 30, correlation=2),
    ]
    # 0-5 the first launch; 50-70 queued since 2.
    assert us(one(tmp_path, events)["total"]["states_ns"]) == {"compute": 75, "host": 5, "idle": 20}


@pytest.mark.parametrize("turned", [False, True])
def test_simultaneous_work_is_queued_if_any_was(tmp_path, turned):
    events = [launch(0, 1, 1), launch(1, 1, 2), launch(30, 1, 3), kernel(2, 18, correlation=1)]
    pair = [kernel(40, 10, correlation=2), kernel(40, 5, stream=8, correlation=3)]
    events += [step(1, 0, 50), *(reversed(pair) if turned else pair)]
    assert us(one(tmp_path, events)["total"]["states_ns"]) == {"compute": 28, "host": 2, "idle": 20}


def test_empty_kernel_ends_no_gap(tmp_path):
    events = [launch(0, 1, 1), launch(1, 1, 2), launch(30, 1, 3), kernel(2, 18, correlation=1)]
    events += [step(1, 0, 50), kernel(40, 0, correlation=2), kernel(40, 10, correlation=3)]
    assert us(one(tmp_path, events)["total"]["states_ns"]) == {"compute": 28, "host": 22}


def test_operators_with_equal_start_nest_by_length(tmp_path):
    top = one(tmp_path, [op(0, 10, "aten::addmm"), op(0, 40, "aten::linear"), op(0, 30, "aten::matmul")])[
        "top"
    ]
    assert {row["name"]: row["ns"] // 1000 for row in top} == {
        "aten::linear": 10,
        "aten::matmul": 20,
        "aten::addmm": 10,
    }


def test_gpu_behind_the_host_has_its_own_steps(tmp_path):
    """The host sends two steps off within 20 us; each keeps the GPU busy for 100."""
    events = [
        step(1, 0, 10),
        launch(0, 1, 1),
        step(2, 10, 10),
        launch(12, 1, 2),
        kernel(5, 100, correlation=1),
        kernel(105, 100, correlation=2),
    ]
    first, second = one(tmp_path, events)["steps"]
    assert (first["wall_ns"], us(first["states_ns"])) == (105_000, {"compute": 100, "host": 5})
    assert (second["wall_ns"], us(second["states_ns"])) == (100_000, {"compute": 100})


def test_gpus_of_one_file_are_separate(tmp_path):
    events = [
        step(1, 0, 100, tid=1),
        launch(0, 1, 1, tid=1),
        launch(0, 1, 2, tid=2),
        op(0, 100, tid=2),
        kernel(10, 90, device=0, correlation=1),
        kernel(50, 50, device=1, correlation=2),
        kernel(20, 10, ALLREDUCE, device=1, stream=20),
    ]
    devices = analyze([write(tmp_path / "t.json", events)])["ranks"][0]["devices"]
    assert [one["device"] for one in devices] == ["GPU 0", "GPU 1"]
    assert us(devices[0]["total"]["states_ns"]) == {"compute": 90, "host": 10}
    # 0-20 thread 2 is busy; 30-50 is queued since 0.
    want = {"compute": 50, "communication": 10, "host": 20, "idle": 20}
    assert us(devices[1]["total"]["states_ns"]) == want
    assert [one["total"]["wall_ns"] for one in devices] == [100_000, 100_000]


@pytest.mark.parametrize("base", ["", "1712195495519"])
def test_times_are_exact_to_the_nanosecond(tmp_path, base):
    """A 64-bit float would be wrong by up to 128 ns at 1.7e15 microseconds."""
    events = [
        step(1, Number(f"{base}500.001"), Number("0.999")),
        kernel(Number(f"{base}500.017"), Number("0.003")),
        kernel(Number(f"{base}500.020"), Number("0.0075")),  # 7.5 ns: half goes to the even number, 8
        kernel(Number(f"{base}500.1e0"), Number("1e-1")),
        kernel(Number(f"{base}500.90"), 0),
    ]
    around = {"displayTimeUnit": "ns", "baseTimeNanoseconds": 1735632360000000000}
    document = analyze([write(tmp_path / "t.json", events, **around)])
    (device,) = document["ranks"][0]["devices"]
    assert device["total"]["wall_ns"] == 999
    assert device["total"]["states_ns"]["compute"] == 3 + 8 + 100
    assert document["ranks"][0]["base_time_ns"] == 1735632360000000000
    assert device["steps"][0]["start_ns"] == int(f"{base}500001")


def test_display_unit_does_not_matter(tmp_path):
    events = [kernel(0, 10), kernel(20, 10)]
    assert one(tmp_path, events, displayTimeUnit="ns") == one(tmp_path, events, displayTimeUnit="ms")


def test_copies_to_the_device_have_bytes_and_time(tmp_path):
    """By hand: 3 MB in 150 us of the steps; neither the other direction, nor a copy outside, nor one of unknown size."""

    def sized(start: int, length: int, size, name: str = "Memcpy HtoD (Pinned -> Device)") -> dict:
        made = copy(start, length, name)
        made["args"]["bytes"] = size
        return made

    events = [
        *(step(1, 0, 100), step(2, 100, 100), kernel(0, 10), kernel(190, 10)),
        *(sized(10, 50, 1_000_000), sized(20, 50, 1_000_000), sized(110, 50, 1_000_000, "CopyHostToDevice")),
        *(
            sized(80, 5, 9_999, "Memcpy DtoH (Device -> Pinned)"),
            sized(150, 5, "1"),
            sized(160, 5, -1),
            copy(170, 5),
        ),
        sized(250, 10, 5_000_000),
    ]
    device = one(tmp_path, events)
    assert [(row["h2d_bytes"], row["h2d_ns"]) for row in device["steps"]] == [
        (2_000_000, 100_000),
        (1_000_000, 50_000),
    ]
    assert (device["total"]["h2d_bytes"], device["total"]["h2d_ns"]) == (3_000_000, 150_000)
    assert "copies to the device: 3 MB at 20 GB/s" in render(combine([analyze_one(tmp_path / "trace.json")]))


def test_pytorch_1_8_categories(tmp_path):
    events = [
        event("Operator", "ProfilerStep#3", 0, 100),
        event("Operator", "aten::mm", 0, 20),
        event("Operator", LOADER_1_8, 60, 30),
        event("Runtime", "cudaLaunchKernel", 5, 2, correlation=9, cbid=211),
        event("Kernel", "volta_sgemm", 10, 30, pid=0, tid="stream 7", device=0, stream=7, correlation=9),
        event("Memcpy", "Memcpy HtoD (Pageable -> Device)", 40, 10, pid=0, tid="stream 7", device=0),
        event("Memset", "Memset (Device)", 50, 10, pid=0, tid="stream 7", device=0),
        event("Kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclColl)", 90, 10, pid=0, device=0),
    ]
    device = one(tmp_path, events, rank=None)
    assert device["steps_from"] == "ProfilerStep"
    want = {"compute": 30, "communication": 10, "copy": 20, "loader": 30, "host": 10}
    assert us(device["total"]["states_ns"]) == want


LOADER_1_8 = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_rocm_and_other_runtimes(tmp_path):
    events = [
        step(1, 0, 100),
        event("cuda_runtime", "hipLaunchKernel", 0, 2, correlation=1),
        event("xpu_runtime", "urEnqueueKernelLaunch", 4, 2, correlation=2),
        event("cuda_driver", "cuLaunchKernel", 5, 2, correlation=3),
        event("cuda_runtime", "hipDeviceSynchronize", 80, 20),
        kernel(10, 10, "Cijk_Alik_Bljk_SB_MT64x64x16", correlation=1),
        kernel(20, 10, "__amd_rocclr_copyBuffer", correlation=2),
        kernel(30, 10, "ncclDevKernel_Generic(ncclDevComm*)", correlation=3),
        kernel(40, 10, "void rccl_main_kernel<1>(int)"),
        event("gpu_memcpy", "CopyHostToDevice", 50, 10, pid=0, device=0),
        kernel(60, 20, "void small_reduce_kernel<float>(float*)"),  # No all_reduce.
    ]
    device = one(tmp_path, events)
    assert us(device["total"]["states_ns"]) == {
        "compute": 30,
        "communication": 20,
        "copy": 20,
        "host": 10,
        "idle": 20,
    }
    assert device["launches_known"] == 3


def test_mtia_device_events(tmp_path):
    """A step of 100 us that computes 60 on the device: not a CPU that is 99 % busy."""
    events = [
        step(1, 0, 100),
        op(0, 99),
        event("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", 5, 5, correlation=1),
        event("mtia_ccp_events", "fbgemm::embedding_bag", 20, 60, pid=0, tid=3, correlation=1),
        event("gpu_memcpy", "memcpy HtoD", 80, 10, pid=0, tid=4),
        event("mtia_counters", "HBM", 0, 100, pid=0),
    ]
    document = analyze([write(tmp_path / "t.json", events)])
    (device,) = document["ranks"][0]["devices"]
    assert (device["device"], device["launches_known"]) == ("MTIA 0", 1)
    assert us(device["total"]["states_ns"]) == {"compute": 60, "copy": 10, "host": 29, "idle": 1}
    assert document["ranks"][0]["problems"] == []


def test_hpu_device_events(tmp_path):
    """Habana's host calls and device events share a category; the engine tells what runs."""
    engines = ["TPC_SPU_START_TO_SPU_HALT", "MMEH_WB", "DBG_DMA_TRC_WR_DATA_LAST", "NIC_TX"]
    work = [
        event("hpu_op", "work", 20 * i, 20, pid=0, tid=i, **{"HW event name": engine})
        for i, engine in enumerate(engines)
    ]
    events = [step(1, 0, 100), op(80, 10), event("hpu_op", "synLaunch", 90, 10), *work]
    device = one(tmp_path, events)
    assert device["device"] == "HPU 0"
    assert us(device["total"]["states_ns"]) == {"compute": 40, "copy": 20, "communication": 20, "host": 20}


@pytest.mark.parametrize(
    ("runtime", "call", "kernels", "copies", "label"),
    [
        ("xpu_runtime", "urEnqueueKernelLaunch", "kernel", "gpu_memcpy", "GPU"),
        ("xpu_driver", "zeCommandListAppendLaunchKernel", "kernel", "gpu_memset", "GPU"),
        ("privateuse1_runtime", "aclrtLaunchKernel", "kernel", "gpu_memcpy", "GPU"),
        ("mlu_runtime", "cnLaunchKernel", "mlu_kernel", "mlu_memcpy", "MLU"),
        ("gcu_driver", "topsLaunchKernel", "kernel", "gcu_memset", "GPU"),
        ("npu_runtime", "launchKernel", "AI_CORE", "npu_memcpy", "GPU"),
    ],
)
def test_devices_of_other_backends(tmp_path, runtime, call, kernels, copies, label):
    events = [step(1, 0, 100), event(runtime, call, 10, 5, correlation=1)]
    events += [kernel(20, 50, "gemm", category=kernels, correlation=1), kernel(70, 20, "x", category=copies)]
    events += [kernel(0, 100, "y", category=f"{runtime.split('_')[0]}_sync")]
    document = analyze([write(tmp_path / "t.json", events)])
    (device,) = document["ranks"][0]["devices"]
    assert device["device"] == f"{label} 0" and document["ranks"][0]["problems"] == []
    assert us(device["total"]["states_ns"]) == {"compute": 50, "copy": 20, "host": 20, "idle": 10}


@pytest.mark.parametrize(
    ("name", "is_communication"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", True),
        ("void sglang::cross_device_reduce_1stage<__half, 8>(RankData*)", True),
        ("multimem_all_reduce_kernel", True),
        ("void tensorrt_llm::kernels::twoShotAllReduceKernel<float>(int)", True),
        ("void deep_ep::intranode::dispatch<8>(int4*)", True),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)", False),
        ("void elementwise<nccl_like_functor>(float*)", False),
        ("scatter_reduce_kernel", False),
    ],
)
def test_collective_kernels_by_name(tmp_path, name, is_communication):
    states = us(one(tmp_path, [kernel(0, 10, name)])["total"]["states_ns"])
    assert states == {"communication" if is_communication else "compute": 10}


def test_gloo_collectives_overlap_backward(tmp_path):
    """CPU only: the collective is under way on a thread of its own, and the call of it holds up the main thread."""
    events = [
        step(1, 0, 100),
        op(0, 40, "autograd::engine::evaluate_function: AddmmBackward0"),
        op(30, 10, "c10d::allreduce_"),  # Inside the operator: the thread is in the collective's call.
        note(32, 48, "gloo:all_reduce", tid=2),
        op(35, 60, "aten::copy_", tid=2),  # Not a thread that trains.
        note(80, 10, "Optimizer.step#SGD.step"),
    ]
    row = one(tmp_path, events)["total"]
    # 30-80 communication, none beside an operator of the training thread; 80-90 annotation, 90-100 nothing.
    assert us(row["states_ns"]) == {"compute": 30, "communication": 50, "host": 10, "idle": 10}
    events[1] = op(0, 60, "autograd::engine::evaluate_function: AddmmBackward0")
    row = one(tmp_path, events)["total"]
    # Computing 0-30 and 40-60; the collective runs 30-80, of which 40-60 beside it.
    assert us(row["states_ns"]) == {"compute": 50, "communication": 30, "host": 10, "idle": 10}
    assert row["overlap_percent"] == 40


def test_work_launched_before_the_first_step(tmp_path):
    """Two steps of 100 us each; a kernel of the step before keeps the GPU busy for the first 100 us of the trace."""
    events = [launch(-8, 1, 1), step(1, 0, 10), launch(5, 1, 2), step(2, 10, 10), launch(15, 1, 3)]
    events += [
        kernel(0, 100, correlation=1),
        kernel(100, 100, correlation=2),
        kernel(200, 100, correlation=3),
    ]
    device = one(tmp_path, events)
    assert [row["wall_ns"] for row in device["steps"]] == [100_000, 100_000]
    assert device["steps"][0]["start_ns"] == 100_000
    assert us(device["total"]["states_ns"]) == {"compute": 200}
    assert device["total"]["outside_steps_ns"] == 100_000
    assert device["top"][0]["count"] == 2


@pytest.mark.parametrize("correlation", [1, 9, None])
def test_early_work_without_its_launch(tmp_path, correlation):
    """Launched before recording began: its id is smaller than all others, or it runs before the first mark."""
    events = [step(1, 0, 10), launch(5, 1, 2), kernel(100, 100, correlation=2)]
    events += [kernel(20 if correlation == 1 else -20, 80, correlation=correlation)]
    device = one(tmp_path, events)
    until = 100 if correlation == 1 else 60
    assert device["steps"][0]["start_ns"] == until * 1000
    assert us(device["total"]["states_ns"]) == {"compute": 100} | ({"idle": 40} if until == 60 else {})


def test_first_step_begins_with_its_own_compute(tmp_path):
    # An all-reduce of the step before runs until 80; the step computes from 50. Its loader waits from 0 to 50.
    events = [launch(-8, 1, 1), step(1, 0, 100), loader(0, 45), launch(46, 1, 2)]
    events += [kernel(-5, 10, correlation=1), kernel(-5, 85, ALLREDUCE, stream=20, correlation=1)]
    device = one(tmp_path, [*events, kernel(50, 50, correlation=2)])
    assert us(device["total"]["states_ns"]) == {"compute": 50}
    # Had it ended at 10, the step would begin there, with its loader.
    events[-1] = kernel(-5, 15, ALLREDUCE, stream=20, correlation=1)
    device = one(tmp_path, [*events, kernel(50, 50, correlation=2)])
    assert us(device["total"]["states_ns"]) == {"compute": 50, "loader": 35, "host": 5}


def test_without_marks_steps_end_with_the_optimizer(tmp_path):
    events = [
        op(0, 10),
        note(10, 10, "Optimizer.step#Adam.step"),
        op(20, 10),
        note(30, 10, "Optimizer.step#Adam.step"),
        op(40, 30),
        note(70, 5, "Optimizer.step#Adam.step"),
        op(80, 5),
    ]
    device = one(tmp_path, events)
    assert device["steps_from"] == "Optimizer.step"
    assert [(row["start_ns"], row["wall_ns"]) for row in device["steps"]] == [
        (20_000, 20_000),
        (40_000, 35_000),
    ]
    assert [row["name"] for row in device["steps"]] == [
        "1 (to Optimizer.step#Adam.step)",
        "2 (to Optimizer.step#Adam.step)",
    ]
    device = one(tmp_path, [op(0, 10), op(20, 10)])
    assert device["steps_from"] == "whole trace"
    assert [row["wall_ns"] for row in device["steps"]] == [30_000]


def test_setup_before_the_first_optimizer_step(tmp_path):
    """Set-up for 1 s in Python, then steps of 100 ms with 27 ms of loader and 20 ms of Python; then 500 ms of saving."""
    events, at = [op(0, 10), op(400_000, 10), op(999_000, 10)], 1_000_000
    for number in range(1, 5):
        events += [loader(at, 27_000), launch(at + 47_000, 10, number)]
        events += [kernel(at + 47_010, 52_000, correlation=number), note(at + 99_000, 1000, OPTIMIZER)]
        at += 100_000
    document = analyze([write(tmp_path / "t.json", [*events, op(at + 500_000, 10)])])
    (device,) = document["ranks"][0]["devices"]
    assert [row["wall_ns"] for row in device["steps"]] == [100_000_000] * 3
    assert document["cause"]["state"] == "loader" and document["cause"]["share"] == pytest.approx(0.27)


def test_single_optimizer_step_begins_at_its_loader(tmp_path):
    events = [op(0, 10), loader(500, 27), op(540, 50), note(590, 10, OPTIMIZER), op(900, 10)]
    device = one(tmp_path, events)
    assert [(row["start_ns"], row["wall_ns"]) for row in device["steps"]] == [(500_000, 100_000)]
    device = one(tmp_path, [event for event in events if event["name"] != events[1]["name"]])
    assert [(row["start_ns"], row["wall_ns"]) for row in device["steps"]] == [(0, 600_000)]


OPTIMIZER = "Optimizer.step#Adam.step"


def test_time_between_and_after_steps_is_separate(tmp_path):
    events = [step(1, 0, 10), step(2, 15, 10), kernel(5, 10), kernel(40, 7)]
    total = one(tmp_path, events)["total"]
    assert (total["wall_ns"], total["between_steps_ns"], total["outside_steps_ns"]) == (20_000, 5_000, 12_000)


def test_repeated_launch_id_uses_the_last_before_the_work(tmp_path):
    events = [
        launch(0, 1, 5, pid=1),
        launch(50, 1, 5, pid=2),
        kernel(10, 10, correlation=5, device=0),
        kernel(60, 10, correlation=5, device=1),
        op(20, 40, pid=1),
        loader(1, 59, pid=2),
        *(step(1, 0, 70, pid=pid) for pid in (1, 2)),
    ]
    devices = analyze([write(tmp_path / "t.json", events)])["ranks"][0]["devices"]
    assert us(devices[0]["total"]["states_ns"]) == {"compute": 10, "host": 50, "idle": 10}
    # Device 1 is fed by process 2: 0-1 Python, 1-60 the loader but for its launch, which the loader holds.
    assert us(devices[1]["total"]["states_ns"]) == {"compute": 10, "loader": 59, "host": 1}


def test_ranks_show_who_waits_for_whom(tmp_path):
    """Rank 1 comes late to step 1 by 30 us, so the others wait in it; in step 2 all pay 10."""
    paths = []
    for rank, (first, second) in enumerate([(40, 10), (10, 10), (35, 10)]):
        events = [step(1, 0, 100), step(2, 100, 100)]
        events += [kernel(50 - first, first, ALLREDUCE), kernel(150, second, ALLREDUCE), kernel(60, 40)]
        paths.append(write(tmp_path / f"{rank}.json", events, rank=rank))
    document = analyze(reversed(paths))
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1, 2]
    want = {"steps": 2, "all_paid_ns": 60_000, "waiting_ns": 55_000, "waited_least": 1}
    assert document["waiting"] == want
    assert document["total"]["wall_ns"] == 600_000
    assert us(document["total"]["states_ns"])["communication"] == 115


@pytest.mark.parametrize(
    ("events", "state", "words"),
    [
        ([kernel(0, 20), kernel(20, 60, ALLREDUCE)], "communication", "0 % of communication is hidden"),
        ([kernel(0, 20), copy(20, 60, "Memcpy HtoD (Pageable -> Device)")], "copy", "pin_memory"),
        ([kernel(0, 20), loader(20, 50), kernel(70, 10)], "loader", "num_workers"),
        ([kernel(0, 20), op(20, 50), kernel(70, 10)], "host", "torch.compile"),
        ([kernel(0, 20), sync(20, 50), kernel(70, 10)], "idle", ".item()"),
        ([launch(0, 1, 1), kernel(1, 20), kernel(70, 10, correlation=1)], "idle", "does not start:"),
        ([op(0, 5), op(70, 5)], "host", "Python between operators"),
    ],
)
def test_the_leading_cause(tmp_path, events, state, words):
    cause = analyze([write(tmp_path / "t.json", events)])["cause"]
    assert cause["state"] == state and words in cause["advice"]
    assert cause["gain"] == pytest.approx(1 / (1 - cause["share"]))


def advice_of(tmp_path, events) -> list[tuple[str, str]]:
    causes = analyze([write(tmp_path / "t.json", events)])["causes"]
    return [(cause["state"], cause["advice"]) for cause in causes]


def test_long_gap_is_named_by_what_the_host_did(tmp_path):
    """One gap of 218 ms of preprocessing among five short ones: not "6 gaps of 36 ms: torch.compile"."""
    events, at = [step(1, 0, 400_000)], 0
    for number in range(1, 7):
        gap = 218_000 if number == 4 else 100
        events += [launch(at + gap - 10, 5, number), kernel(at + gap, 30_000, correlation=number)]
        if number == 4:
            events.append(event("python_function", "train.py(12): preprocess", at, gap - 10))
            events.append(event("python_function", "<built-in method split>", at, gap - 20))
        at += gap + 30_000
    ((state, advice),) = advice_of(tmp_path, events)
    assert state == "host" and "torch.compile" not in advice
    assert "one gap of 218 ms, the host in train.py(12): preprocess." in advice
    # Without the frames nobody knows what it was.
    bare = [one for one in events if one["cat"] != "python_function"]
    assert "with_stack=True" in advice_of(tmp_path, bare)[0][1]


def test_long_gaps_around_graph_launches(tmp_path):
    """96 gaps of 1.5 ms between graphs that were launched in time are not many small kernels."""
    events = [step(1, 0, 96 * 4000)]
    for i in range(97):
        events.append(launch(max(0, 4000 * i - 2000), 100, i + 1, "hipGraphLaunch"))
        events.append(kernel(4000 * i, 2500, correlation=i + 1))
    ((state, advice),) = advice_of(tmp_path, events)
    assert state == "idle" and "small kernels" not in advice
    assert "in 96 gaps of 1.5 ms on average before graph launches" in advice


def test_short_gaps_keep_their_advice_beside_a_long_one(tmp_path):
    events = [step(1, 0, 13_000)]
    for i in range(100):
        events += [launch(100 * i + 40, 5, i + 1), kernel(100 * i + 50, 50, correlation=i + 1)]
    events += [launch(11_990, 5, 200), kernel(12_000, 1000, correlation=200)]
    ((_, advice),) = advice_of(tmp_path, events)
    assert "in 100 gaps of 50 µs on average: launch less often" in advice


def test_causes_near_the_largest_are_advised_on(tmp_path):
    # Host 27 %, loader 22 %, compute 51 %.
    events = [step(1, 0, 1000), loader(0, 220), op(220, 270), launch(480, 5, 1)]
    assert [state for state, _ in advice_of(tmp_path, [*events, kernel(490, 510, correlation=1)])] == [
        "host",
        "loader",
    ]
    # Host 40 %, loader 10 %: one cause.
    events = [step(1, 0, 1000), loader(0, 100), op(100, 400), launch(480, 5, 1)]
    assert [state for state, _ in advice_of(tmp_path, [*events, kernel(500, 500, correlation=1)])] == ["host"]


@pytest.mark.parametrize(("last", "mean"), [(1, "25 µs"), (50, "17.3 µs")])
def test_truncated_last_step_is_left_out_of_the_mean(tmp_path, last, mean):
    events = [step(0, 0, 200), loader(0, 25), kernel(25, 175), step(1, 200, 200), loader(200, 25)]
    events += [kernel(225, 175), step(2, 400, last), loader(400, min(last, 2))]
    document = analyze([write(tmp_path / "t.json", events)])
    assert f"each step by {mean}:" in document["cause"]["advice"]
    assert len(document["ranks"][0]["devices"][0]["steps"]) == 3
    assert document["total"]["wall_ns"] == 1000 * (400 + last)


def test_no_cause_below_the_threshold(tmp_path):
    assert analyze([write(tmp_path / "t.json", [step(1, 0, 100), kernel(0, 99), op(99, 1)])])["cause"] is None


def test_autograd_profiler_export(tmp_path):
    """torch.autograd.profiler without Kineto: a bare list, no categories, the process is named."""
    path = tmp_path / "t.json"
    path.write_text(
        '[{"name": "aten::mm", "ph": "X", "ts": 0.5, "dur": 9.5, "tid": 1, "pid": "CPU functions", "args": {}}, '
        '{"name": "gemm", "ph": "X", "ts": 10.0, "dur": 20.25, "tid": 0, "pid": "CUDA functions", "args": {}}]'
    )
    (device,) = analyze([path])["ranks"][0]["devices"]
    assert device["device"] == "GPU 0"
    assert device["total"]["states_ns"]["compute"] == device["total"]["wall_ns"] == 20_250
    assert device["total"]["before_work_ns"] == 9_500


def test_python_frames_count_as_host(tmp_path):
    events = [
        kernel(0, 10),
        event("python_function", "train.py(3): tokenize", 10, 30, pid=HOST),
        kernel(50, 10),
    ]
    assert us(one(tmp_path, events)["total"]["states_ns"]) == {"compute": 20, "host": 30, "idle": 10}


@pytest.mark.parametrize(
    ("category", "name", "is_loader"),
    [
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("user_annotation", "enumerate(DataPipe)#ShufflerIterDataPipe", True),
        ("user_annotation", "[pl][profile][_TrainingEpochLoop].train_dataloader_next", True),
        ("python_function", "torch/utils/data/dataloader.py(720): __next__", True),
        ("python_function", "torch/utils/data/dataloader.py(500): __init__", False),
        ("user_annotation", "## wait_for_batch ##", False),
    ],
)
def test_loaders_by_name(tmp_path, category, name, is_loader):
    states = us(
        one(tmp_path, [kernel(0, 10), event(category, name, 10, 30), kernel(40, 10)])["total"]["states_ns"]
    )
    assert states == {"compute": 20, "loader" if is_loader else "host": 30}
