"""Which pods have which GPUs, queried from a gRPC server that speaks the kubelet's pod-resources API."""

import builtins
import os
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("grpc", reason="grpcio is not installed")
pytest.importorskip("h2", reason="the extra pods is not installed")

import grpc
from support.node.agents import agent_on
from support.node.broken_files import parse_or_raise
from support.node.kubelet import Kubelet, Messages, response

from goodput_exporters.collector import CollectorError, NoData, ParseError, Settings
from goodput_exporters.collectors.pod_resources import collector as module
from goodput_exporters.collectors.pod_resources.collector import (
    KEPT_SECONDS,
    LIST_SECONDS,
    METHOD,
    PodResources,
    by_device,
)
from goodput_exporters.collectors.pod_resources.messages import (
    ENTRIES_MAX,
    Allocation,
    parse_allocations,
)
from goodput_exporters.collectors.pod_resources.unary_call import unary_call
from goodput_exporters.gpu.merge import MergedGpu

WHOLE, SHARED, SLICE = "GPU-5d2a3c1e", "GPU-77aa", "MIG-0f3b"
PODS = {
    ("ml", "train-0"): {
        "main": {"nvidia.com/gpu": [WHOLE, f"{SHARED}::0"], "rdma/hca": ["mlx5_0"]},
        "sidecar": {},
    },
    ("ml", "notebook"): {"jupyter": {"nvidia.com/gpu.shared": [f"{SHARED}::1"]}},
    ("infer", "serve-1"): {"server": {"nvidia.com/mig-1g.10gb": [SLICE]}},
    ("amd", "rocm-0"): {"main": {"amd.com/gpu": ["0000:C1:00.0"]}},
    ("gke", "job-0"): {"main": {"nvidia.com/gpu": ["nvidia3"]}},
    ("kube-system", "dns"): {"dns": {}},
}


@pytest.fixture
def path(tmp_path):
    # A socket's path has 107 characters at most.
    folder = os.open(tmp_path, os.O_RDONLY)
    yield (
        f"/proc/{os.getpid()}/fd/{folder}/kubelet.sock"
        if len(str(tmp_path)) > 80
        else str(tmp_path / "kubelet.sock")
    )
    os.close(folder)


@pytest.fixture
def kubelet(path):
    with Kubelet(path, response(PODS)) as running:
        yield running


def pod_resources(path: str, **given) -> PodResources:
    return PodResources(Settings(directory="", pod_resources=path, **given))


def test_pods_of_each_gpu(kubelet):
    collector = pod_resources(kubelet.path)
    collector.collect(None)
    pods = {
        gpu.uuid: collector.pods_of(gpu)
        for gpu in (
            MergedGpu(WHOLE, index=0),
            MergedGpu(SHARED, index=1),
            MergedGpu(SLICE, parent="GPU-9"),
            MergedGpu("0x1234", pci="0000:c1:00.0", index=9),
            MergedGpu("GPU-by-index", index=3),
            MergedGpu("MIG-of-index", index=3, parent="GPU-by-index"),
            MergedGpu("GPU-free", index=4),
        )
    }
    assert pods == {
        WHOLE: [("train-0", "ml", "main")],
        SHARED: [("notebook", "ml", "jupyter"), ("train-0", "ml", "main")],
        SLICE: [("serve-1", "infer", "server")],
        "0x1234": [("rocm-0", "amd", "main")],
        "GPU-by-index": [("job-0", "gke", "main")],
        "MIG-of-index": [],
        "GPU-free": [],
    }


def claim(path: str, root, **devices: list[str]) -> PodResources:
    """With a pod for each given list of devices of a claim, by the driver's vendor."""
    pods = {
        ("ml", f"{vendor}-0"): {"main": {f"claim:gpu.{vendor}.com": names}}
        for vendor, names in devices.items()
    }
    pods["ml", "fabric-0"] = {"main": {"claim:compute-domain.nvidia.com": ["channel-0"]}}
    pods["ml", "old-kubelet-0"] = {"main": {"claim:": ["gpu-0"]}}
    with Kubelet(path, response(pods)):
        collector = pod_resources(path, sysfs=str(root / "sys"), procfs=str(root / "proc"))
        collector.collect(None)
    return collector


def test_claimed_nvidia_gpus_go_by_device_file(path, tmp_path):
    """Not by NVML's index, from which it differs on machines with more than one PCI root."""
    for address, minor in (("0000:18:00.0", 1), ("0000:28:00.0", 0)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 112\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    collector = claim(path, tmp_path, nvidia=["gpu-0", "gpu-2", "gpu-3-mig-1g10gb-19-0"])
    by_index = [
        MergedGpu("GPU-a", index=0, pci="0000:18:00.0", known_by=["nvml"]),
        MergedGpu("GPU-b", index=1, pci="0000:28:00.0", known_by=["nvml"]),
        MergedGpu("GPU-c", index=2, pci="0000:38:00.0", known_by=["nvml"]),  # its driver does not say
        MergedGpu("GPU-d", index=3, pci="0000:48:00.0", known_by=["nvml"]),
        MergedGpu("MIG-d", index=0, parent="GPU-d", profile="1g.10gb"),
    ]
    train = [("nvidia-0", "ml", "main")]
    assert [collector.pods_of(gpu) for gpu in by_index] == [[], train, train, [], []]


def test_claimed_gpus_of_amd_go_by_their_drm_devices(path, tmp_path):
    drm = tmp_path / "sys/bus/pci/devices/0000:c1:00.0/drm"
    for name in ("card1", "renderD129", "card1-DP-1", "controlD65"):
        (drm / name).mkdir(parents=True)
    collector = claim(path, tmp_path, amd=["gpu-1-129"], nvidia=["gpu-7"])
    mi300 = MergedGpu("0x1234", index=7, pci="0000:c1:00.0", known_by=["amd"])
    assert collector.pods_of(mi300) == [("amd-0", "ml", "main")]
    assert collector.pods_of(MergedGpu("0x5678", pci="0000:c2:00.0", known_by=["amd"])) == []


def test_names_of_a_gpu_are_read_again_with_each_list(path, tmp_path, clock):
    gpu = MergedGpu("GPU-a", index=5, pci="0000:18:00.0", known_by=["nvml"])
    with Kubelet(path, response({("ml", "a"): {"main": {"claim:gpu.nvidia.com": ["gpu-1"]}}})):
        collector = pod_resources(path, procfs=str(tmp_path), monotonic_ns=clock.monotonic_ns)
        collector.collect(None)
        assert collector.pods_of(gpu) == []
        folder = tmp_path / "driver/nvidia/gpus/0000:18:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Device Minor: \t 1\n")
        clock.seconds = LIST_SECONDS
        collector.collect(None)
    assert collector.pods_of(gpu) == [("a", "ml", "main")]


def test_kubelet_of_many_pods(path):
    """More than one HTTP/2 window."""
    many = {("ml", f"train-{n}"): {"main": {"nvidia.com/gpu": [f"GPU-{n}"]}} for n in range(3000)}
    with Kubelet(path, response(many)):
        found = list(parse_allocations(unary_call(path, METHOD, b"", 10.0)))
    assert len(found) == 3000 and found[-1] == Allocation(
        "train-2999", "ml", "main", "nvidia.com/gpu", "GPU-2999"
    )


def test_kubelet_is_queried_now_and_then(kubelet, clock):
    collector = pod_resources(kubelet.path, monotonic_ns=clock.monotonic_ns)
    for seconds in (0, LIST_SECONDS - 1, LIST_SECONDS):
        clock.seconds = seconds
        collector.collect(None)
    assert kubelet.calls == 2


def test_refusals_are_reported_and_known_pods_stay(kubelet, clock):
    collector = pod_resources(kubelet.path, monotonic_ns=clock.monotonic_ns)
    collector.collect(None)
    kubelet.answer = lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "not for you")
    clock.seconds = LIST_SECONDS
    for _ in range(2):
        with pytest.raises(CollectorError, match="gRPC status 7 not for you"):
            collector.collect(None)
    assert collector.pods_of(MergedGpu(WHOLE))
    clock.seconds = KEPT_SECONDS + 1
    assert collector.pods_of(MergedGpu(WHOLE)) == []


def test_kubelet_that_does_not_answer(path):
    """Neither at all, nor byte by byte."""
    ends = threading.Event()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def trickle():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"\0\0\0\4\0\0\0\0\0")  # empty settings
                while not ends.wait(0.02):
                    try:
                        connection.sendall(b"\0\0\0\4\1\0\0\0\0"[:1])
                    except OSError:
                        return

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        begin = time.monotonic()
        with pytest.raises(CollectorError, match=r"kubelet\.sock: "):
            unary_call(path, METHOD, b"", 0.3)
        assert time.monotonic() - begin < 20
        ends.set()
        thread.join(20)


@pytest.mark.parametrize(
    "answer, error",
    [
        # HTTP/2 frames: empty settings, and headers with the value ff fe; and a frame of another stream than ours.
        (b"\0\0\0\4\0\0\0\0\0" + b"\0\0\7\1\4\0\0\0\1\x88\0\1a\2\xff\xfe", "UnicodeDecodeError"),
        (b"\0\0\0\4\0\0\0\0\0" + b"\0\0\1\0\0\0\0\0\3x", "NoSuchStreamError"),
    ],
    ids=["headers", "stream"],
)
def test_broken_frames_are_named(path, answer, error):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        held = []
        thread = threading.Thread(target=lambda: held.append(server.accept()[0]) or held[0].sendall(answer))
        thread.start()
        with pytest.raises(CollectorError, match=rf"kubelet\.sock: ({error}): "):
            unary_call(path, METHOD, b"", 5.0)
        thread.join(20)
        held[0].close()


def test_what_is_no_grpc_server(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        thread = threading.Thread(
            target=lambda: server.accept()[0].sendall(b"HTTP/1.1 400 no\r\n\r\n"), daemon=True
        )
        thread.start()
        with pytest.raises(CollectorError, match=r"kubelet\.sock: "):
            unary_call(path, METHOD, b"", 5.0)
        thread.join(20)


def test_no_socket_is_no_data(tmp_path):
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        with pytest.raises(NoData, match="no socket of a kubelet"):
            pod_resources(str(tmp_path / name)).collect(None)


def test_missing_library_is_reported(kubelet, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("h2"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CollectorError, match="pip install 'goodput-telemetry\\[pods\\]'"):
        pod_resources(kubelet.path).collect(None)


def test_names_are_validated_and_bounded(monkeypatch):
    monkeypatch.setattr(module, "ALLOCATIONS_MAX", 6)
    good = Allocation("a", "b", "c", "nvidia.com/gpu", "GPU-1")
    bad = [
        good._replace(pod="A b"), good._replace(namespace="x" * 64), good._replace(container=""),
        good._replace(device='GPU"1'), good._replace(pod="x\n"),
    ]  # fmt: skip
    others = [good._replace(resource="cpu")] * 9
    assert by_device([*others, good, *bad, good, good]) == ({"GPU-1": [("a", "b", "c")]}, 7)


@given(st.binary(max_size=80))
def test_any_bytes_parse_or_raise(data):
    parse_or_raise(lambda data: list(parse_allocations(data)), data)


@given(st.integers(0, 400))
def test_truncated_answer_parses_or_raises(end):
    whole = response(PODS).SerializeToString()
    try:
        list(parse_allocations(whole[:end]))
    except ParseError:
        pass


def test_answer_of_very_many_devices(path):
    """Parsing takes time in proportion to the answer's length, and stops where no node has as many."""

    def answer(devices: int):
        return response(
            {("ml", "train-0"): {"main": {"nvidia.com/gpu": [f"GPU-{n}" for n in range(devices)]}}}
        )

    began = time.process_time()
    assert len(list(parse_allocations(answer(20_000).SerializeToString()))) == 20_000
    assert time.process_time() - began < 5, "quadratic: minutes"
    expected = pytest.raises(CollectorError, match="more than 65536 pods, containers and devices")
    with Kubelet(path, answer(ENTRIES_MAX)), expected:
        pod_resources(path).collect(None)


def test_empty_answer():
    assert list(parse_allocations(Messages["ListPodResourcesResponse"]().SerializeToString())) == []


def test_agent_names_the_pods_of_gpus(tree, clock, kubelet):
    agent = agent_on(tree, clock, pod_resources=kubelet.path)
    gpu = MergedGpu(WHOLE)
    agent.exposition(20.0)
    assert agent.gpus.pods_of(gpu) == [("train-0", "ml", "main")]
