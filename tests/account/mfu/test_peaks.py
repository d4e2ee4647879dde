"""Peaks: figures against units × clock of the chip, names of the runtimes, unlisted devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput.account.mfu import peaks
from goodput.account.mfu.peaks import DEVICES, find, peak, shares

T = 1e12
# (name, bf16 or fp16 FLOPs per unit and clock, units, GHz at the vendor's boost): what the figure must come from.
# GeForce cards have half of what the same unit does elsewhere, with fp32 accumulation.
CHIPS = [
    ("Tesla V100-SXM2-32GB", "fp16", 1024, 80, 1.53),
    ("Tesla V100-PCIE-16GB", "fp16", 1024, 80, 1.38),
    ("Tesla V100S-PCIE-32GB", "fp16", 1024, 80, 1.597),
    ("Tesla T4", "fp16", 1024, 40, 1.59),
    ("NVIDIA A10", "bf16", 1024, 72, 1.695),
    ("NVIDIA A10G", "bf16", 512, 80, 1.71),
    ("NVIDIA A30", "bf16", 2048, 56, 1.44),
    ("NVIDIA A40", "bf16", 1024, 84, 1.74),
    ("NVIDIA A100-SXM4-80GB", "bf16", 2048, 108, 1.41),
    ("NVIDIA L4", "bf16", 1024, 58, 2.04),
    ("NVIDIA L40", "bf16", 512, 142, 2.49),
    ("NVIDIA L40S", "bf16", 1024, 142, 2.52),
    ("NVIDIA H100 80GB HBM3", "bf16", 4096, 132, 1.83),
    ("NVIDIA H100 PCIe", "bf16", 4096, 114, 1.62),
    ("NVIDIA H200", "bf16", 4096, 132, 1.83),
    ("NVIDIA GeForce RTX 3090", "bf16", 512, 82, 1.695),
    ("NVIDIA GeForce RTX 4090", "bf16", 512, 128, 2.52),
    ("NVIDIA GeForce RTX 5090", "bf16", 512, 170, 2.407),
    ("NVIDIA RTX A6000", "bf16", 1024, 84, 1.80),
    ("NVIDIA RTX 6000 Ada Generation", "bf16", 1024, 142, 2.505),
    ("AMD Instinct MI250X", "bf16", 1024, 110, 1.7),
    ("AMD Instinct MI300X", "bf16", 2048, 304, 2.1),
    ("AMD Instinct MI325X", "bf16", 2048, 304, 2.1),
]


@pytest.mark.parametrize(
    ("name", "dtype", "flops", "units", "gigahertz"), CHIPS, ids=lambda value: str(value)
)
def test_peak_is_units_times_clock(name, dtype, flops, units, gigahertz):
    assert peak(name, dtype) == pytest.approx(flops * units * gigahertz * 1e9, rel=0.015)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_rates_of_a_device_fit_together(device):
    rates = device.peaks
    assert (
        device.source
        and set(rates) <= set(peaks.DTYPES)
        and all(1e12 < rate < 1e16 for rate in rates.values())
    )
    assert rates.get("bf16", rates.get("fp16")) == rates.get("fp16", rates.get("bf16"))
    if "fp8" in rates:
        assert rates["fp8"] == pytest.approx(2 * rates["bf16"], rel=0.02)
    if "tf32" in rates:
        assert rates["tf32"] == pytest.approx(rates["bf16"] / 2, rel=0.03)
        assert rates["fp32"] <= rates["tf32"] * 1.01


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *(("NVIDIA A100-SXM4-40GB", "A100"), ("A100-SXM-80GB", "A100")),
        *(("NVIDIA A100-PCIE-40GB", "A100"), ("NVIDIA A100 80GB PCIe", "A100")),
        *(("NVIDIA H100 NVL", "H100 NVL"), ("H100 SXM5", "H100 SXM"), ("NVIDIA H100 PCIe", "H100 PCIe")),
        *(("NVIDIA H200 NVL", "H200 NVL"), ("NVIDIA GH200 480GB", "GH200"), ("NVIDIA B200", "B200")),
        *(("NVIDIA GB200", "GB200"), ("NVIDIA T4", "T4"), ("  nvidia   l40s ", "L40S")),
        *(("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"), ("AMD Instinct™ MI300X", "MI300X")),
        *(("AMD Instinct MI300X OAM", "MI300X"), ("AMD Instinct MI250X", "MI250X (one of two dies)")),
        *(("TPU v4", "TPU v4"), ("TPU v5 lite", "TPU v5e"), ("TPU v5e", "TPU v5e")),
        *(("TPU v5", "TPU v5p"), ("TPU v5p", "TPU v5p"), ("TPU v6 lite", "TPU v6e")),
        *(("TPU v6e", "TPU v6e"),),
    ],
)
def test_device_names_of_the_runtimes(name, known):
    assert find(name).name == known


@pytest.mark.parametrize(
    "name",
    [
        *("", "cpu", "NVIDIA", "Tesla", "H100", "NVIDIA H100", "V100", "NVIDIA A100X", "NVIDIA A1000"),
        *("NVIDIA A16", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        *("NVIDIA A100-SXM-64GB", "GRID A100-10C", "NVIDIA A10-24Q", "NVIDIA L40S-48C", "NVIDIA L40G"),
        *("NVIDIA L20", "NVIDIA L400", "NVIDIA H100 96GB HBM3", "NVIDIA H100 80GB HBM2e"),
        *("NVIDIA H100 64GB HBM2", "NVIDIA H20", "NVIDIA H800", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        *("NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti", "Quadro RTX 6000"),
        *("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX 6000", "NVIDIA T4G", "T40"),
        *("NVIDIA GB300", "NVIDIA B200A", "NVIDIA B300", "Tesla V100-SXM3-32GB-H"),
        *("Tesla V100-FHHL-16GB", "AMD Instinct MI250X / MI250", "AMD Instinct MI250"),
        *("AMD Instinct MI300A", "AMD Instinct MI300X VF", "AMD Radeon Graphics", "TPU v4 lite"),
        *("TPU v3", "TPU v7x", "TPU v5 lite pod", "TPU v55", "x" * 100_000, "NVIDIA H200\nNVIDIA H200"),
        *("NVIDIA B200, NVIDIA B200",),
    ],
)
def test_unlisted_devices_are_unknown(name):
    assert find(name) is None and peak(name, "bf16") is None


def test_dtypes_without_a_rate_are_unknown():
    assert peak("Tesla T4", "bf16") is None and peak("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert peak("NVIDIA A100-SXM4-80GB", "fp8") is None and peak("AMD Instinct MI250X", "tf32") is None
    assert peak("NVIDIA H200", "fp64") is None and peak("TPU v4", "fp32") is None


@pytest.mark.parametrize(
    ("spelling", "dtype"),
    [
        *(("torch.bfloat16", "bf16"), ("BF16", "bf16"), ("jnp.bfloat16", "bf16"), ("bf16-mixed", "bf16")),
        *(("torch.float16", "fp16"), ("half", "fp16"), ("torch.half", "fp16"), ("16-mixed", "fp16")),
        *(("float", "fp32"), ("torch.float32", "fp32"), ("tensorfloat32", "tf32"), ("double", "fp64")),
        *(("torch.float8_e4m3fn", "fp8"), ("float8_e5m2", "fp8"), (" fp8 ", "fp8"), ("torch.int8", "int8")),
    ],
)
def test_dtype_names_of_the_frameworks(spelling, dtype):
    assert shares(spelling) == {dtype: 1.0}


def test_times_at_peak_add_up_over_shares():
    # Of 1000 FLOPs 800 at 1307.4 and 200 at 2614.9 TFLOP/s.
    seconds = 800 / (1307.4 * T) + 200 / (2614.9 * T)
    assert peak("AMD Instinct MI300X", "bf16=0.8,fp8=0.2") == pytest.approx(1000 / seconds)
    assert peak("NVIDIA L4", " torch.bfloat16 = 1.0 , fp8=0") == 121 * T
    # A dtype that is not used need not be known.
    assert peak("Tesla T4", "fp16=1,bf16=0") == 65 * T
    assert peak("Tesla T4", "fp16=0.9,bf16=0.1") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf16=0.8,fp8=0.1", "sum to 0.9"),
        ("bf16=0.8,fp8=0.200002", "sum to 1"),
        ("bf16=1.5,fp8=-0.5", "from 0 to 1"),
        ("bf16=nan", "from 0 to 1"),
        ("bf16=,fp8=1", "from 0 to 1"),
        ("bf16=0.5,bfloat16=0.5", "named twice"),
        ("bf16=0.5,fp9=0.5", "unknown dtype 'fp9'"),
        ("bf16,fp8", "unknown dtype"),
        ("", "unknown dtype"),
        ("bf16=1," * 100, "at most"),
    ],
)
def test_wrong_dtypes_have_no_peak(text, message):
    with pytest.raises(ValueError, match=message):
        shares(text)
    assert peak("NVIDIA H200", text) is None


def test_shares_may_be_off_by_rounding():
    assert peak("NVIDIA L4", "bf16=0.333333,fp16=0.333333,fp8=0.333333") is not None
    assert shares("bf16=0.3333333,fp16=0.3333333,fp8=0.3333333")["fp8"] == 0.3333333


@given(st.text(max_size=300) | st.none() | st.integers(), st.text(max_size=300) | st.none() | st.floats())
def test_peak_never_raises(device, dtype):
    assert peak(device, dtype) is None


@given(st.sampled_from([row[0] for row in CHIPS]), st.floats(0, 1), st.data())
def test_mixture_lies_between_its_parts(name, share, data):
    rates = find(name).peaks
    one, two = data.draw(st.permutations(sorted(rates)))[:2]
    mixed = peak(name, f"{one}={share!r},{two}={1 - share!r}")
    low, high = sorted((rates[one], rates[two]))
    assert low * 0.999999 <= mixed <= high * 1.000001
