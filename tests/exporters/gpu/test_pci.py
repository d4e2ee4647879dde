"""GPUs that the PCI bus says this node has."""

import os

import pytest

from goodput_exporters.collector import ParseError
from goodput_exporters.gpu.pci import PciBus, is_gpu, normalize, parse_hex, parse_node


@pytest.fixture
def bus(tmp_path):
    """A bus to add devices to, and what reads it: `addresses()` starts afresh."""

    class Tree:
        root = tmp_path / "bus/pci/devices"

        def __init__(self):
            self.now_ns = 0
            self.bus = PciBus(str(tmp_path), lambda: self.now_ns)

        def add(self, address: str, device_class: str, vendor: str, driver: str = "", **files):
            device = self.root / address
            device.mkdir(parents=True)
            for name, text in {"class": device_class, "vendor": vendor, **files}.items():
                (device / name).write_text(f"{text}\n")
            if driver:
                os.symlink(f"../../../bus/pci/drivers/{driver}", device / "driver")
            return device

        def addresses(self) -> list[str] | None:
            return PciBus(str(tmp_path)).gpus()

    return Tree()


def test_without_a_bus_nothing_is_known(bus):
    assert bus.addresses() is None
    assert bus.bus.numa_node("0000:3b:00.0") is None


def test_a_bus_without_gpus_has_none(bus):
    bus.add("0000:00:1f.0", "0x060100", "0x8086")
    assert bus.addresses() == []


def test_which_devices_are_gpus(bus):
    bus.add("0000:3b:00.0", "0x030200", "0x10de", "nvidia")  # H100
    bus.add(
        "0000:3c:00.0", "0x030000", "0x10de"
    )  # A card with a display; no driver loaded: that is to be seen.
    bus.add("0000:3c:00.1", "0x040300", "0x10de")  # its sound
    bus.add("0000:05:00.0", "0x068000", "0x10de")  # NVSwitch
    bus.add("0000:63:00.0", "0x038000", "0x1002")  # MI250
    bus.add("0000:83:00.0", "0x120000", "0x1002")  # MI300X
    bus.add("0000:00:02.0", "0x030000", "0x8086")  # Intel's
    bus.add("0000:02:00.0", "0x030000", "0x1a03")  # of a management controller
    bus.add("0000:04:00.0", "0x120000", "0x10ee")  # another accelerator
    assert bus.addresses() == ["0000:3b:00.0", "0000:3c:00.0", "0000:63:00.0", "0000:83:00.0"]


def test_integrated_graphics_are_not_counted(bus):
    bus.add("0000:06:00.0", "0x030000", "0x1002")
    bus.add("0000:06:00.1", "0x040300", "0x1002")
    bus.add("0000:06:00.2", "0x108000", "0x1022")
    bus.add("0000:07:00.0", "0x030000", "0x1002")
    bus.add("0000:07:00.1", "0x040300", "0x1002")
    assert bus.addresses() == ["0000:07:00.0"]


def test_bound_virtual_functions_are_counted(bus):
    for address, driver in (("0000:3b:00.4", "nvidia"), ("0000:3b:00.5", ""), ("0000:3b:00.6", "vfio-pci")):
        device = bus.add(address, "0x030200", "0x10de", driver)
        os.symlink("../0000:3b:00.0", device / "physfn")
    bus.add("0000:3c:00.0", "0x030200", "0x10de", "vfio-pci")
    assert bus.addresses() == ["0000:3b:00.4"]


def test_broken_files_cost_only_their_device(bus):
    bus.add("0000:3b:00.0", "0x030200", "0x10de")
    bus.add("0000:3c:00.0", "display", "0x10de")
    bus.add("0000:3d:00.0", "", "")
    (bus.root / "0000:3e:00.0").write_text("no directory")
    (bus.root / "not an address").mkdir()
    (bus.add("0000:3f:00.0", "0x030200", "0x10de") / "vendor").unlink()
    os.symlink("nowhere", bus.root / "0000:40:00.0")
    assert bus.addresses() == ["0000:3b:00.0"]
    # A device that is being removed has no files; of the others it is not known whether they are GPUs.
    for _ in range(2):
        assert bus.bus.gpus() == ["0000:3b:00.0"]
        assert sorted(problem.partition(": ")[0].split("/")[-2:] for problem in bus.bus.problems) == [
            ["0000:3c:00.0", "class"], ["0000:3d:00.0", "class"], ["0000:3d:00.0", "vendor"],
        ]  # fmt: skip
        bus.now_ns += 20 * 10**9


def test_numa_nodes(bus):
    bus.add("0000:3b:00.0", "0x030200", "0x10de", numa_node="1")
    bus.add("0000:3c:00.0", "0x030200", "0x10de", numa_node="-1")
    bus.add("0000:3d:00.0", "0x030200", "0x10de", numa_node="one")
    numa = bus.bus.numa_node
    assert (numa("0000:3b:00.0"), numa("0000:3c:00.0"), numa("0000:3d:00.0")) == (1, None, None)
    assert numa("00000000:3B:00.0") == 1  # as NVML writes it
    assert numa("../../secret") is None and numa("") is None


def test_listing_is_cached_then_refreshed(bus):
    device = bus.add("0000:3b:00.0", "0x030200", "0x10de")
    assert bus.bus.gpus() == ["0000:3b:00.0"]
    bus.add("0000:3c:00.0", "0x030200", "0x10de")
    bus.now_ns = int(9.9e9)
    assert bus.bus.gpus() == ["0000:3b:00.0"]
    bus.now_ns = int(10e9)
    assert bus.bus.gpus() == ["0000:3b:00.0", "0000:3c:00.0"]
    for file in device.iterdir():
        file.unlink()
    device.rmdir()
    bus.now_ns = int(20e9)
    assert bus.bus.gpus() == ["0000:3c:00.0"]


def test_a_class_is_read_once(bus, monkeypatch):
    bus.add("0000:3b:00.0", "0x030200", "0x10de")
    bus.bus.gpus()
    monkeypatch.setattr("goodput_exporters.system.files.read_text", lambda *_: pytest.fail("read again"))
    bus.now_ns = int(10e9)
    assert bus.bus.gpus() == ["0000:3b:00.0"]


def test_a_huge_bus_is_bounded(bus, monkeypatch):
    monkeypatch.setattr("goodput_exporters.gpu.pci.DEVICES_MAX", 3)
    for at in range(6):
        bus.add(f"0000:{at:02x}:00.0", "0x030200", "0x10de")
    assert len(bus.addresses()) == 3


@pytest.mark.parametrize(
    "written, expected",
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("3b:00.0", ""),
        ("", ""),
        ("0000:3b:00.8", ""),
        ("0000:3b:00.0\n", ""),
    ],
)
def test_one_way_to_write_an_address(written, expected):
    assert normalize(written) == expected


def test_parsers():
    assert parse_hex("0x030200\n") == 0x030200 and parse_node("-1\n") is None and parse_node("3\n") == 3
    for parse, text in ((parse_hex, "030200"), (parse_hex, "0x"), (parse_hex, "-0x1"), (parse_node, "-2")):
        with pytest.raises(ParseError):
            parse(text)
    assert is_gpu(0x030200, 0x10DE) and not is_gpu(0x120000, 0x10DE)


def test_unreadable_bus_is_a_problem(bus):
    """An absent one is none: a virtual machine may have no PCI bus."""
    assert bus.bus.gpus() is None and bus.bus.problems == []
    bus.root.parent.mkdir(parents=True)
    bus.root.symlink_to(bus.root)
    bus.now_ns += round(1e10)
    assert bus.bus.gpus() is None
    (problem,) = bus.bus.problems
    assert problem.startswith(f"{bus.root}: ")
