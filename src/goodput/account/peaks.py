"""The dense peak of known accelerators, per dtype, each with its source; an unknown device stays unknown.

In: a device's name as PyTorch, NVML, DCGM, ROCm or JAX spell it, and a dtype or the shares of several. Out: FLOP/s
of one device *as the runtime shows it*, or None. A card with two dies that the runtime shows as two devices (MI250X)
has half the card's figure; one that it shows as a single device (B200) has the whole.

Guarantee: names match whole, never in part, so a slice (MIG, vGPU, a virtual function), a laptop chip or a model
that is not listed is unknown, not its big sister. Figures are the vendor's, without structured sparsity. Where the
vendor prints the sparse figure alone, dense is half of it and the source says "halved". Where sources disagree the
vendor's data sheet counts. "fp32" is the rate without TF32; on AMD it is the matrix cores' fp32. A dtype that the
hardware has no matrix rate for (bf16 on a V100) is unknown.

fp16, bf16 and fp8 are the rates *with fp32 accumulation*, which is what training uses. On GeForce cards NVIDIA halves
that rate, so the figure here is half of the one often quoted (RTX 4090: 165 TFLOP/s, not 330).

Does not know: clocks (figures are at the vendor's boost clock), power limits, MI300X compute partitions (CPX shows
eight devices under the name of the whole), fp64, and what the model really ran in.

    peak("NVIDIA H100 80GB HBM3", "torch.bfloat16")     # 989.4e12
    peak("AMD Instinct MI300X", "bf16=0.8,fp8=0.2")     # 1452.7e12
    peak("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16")    # None
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

SHARES_OFF_MAX = 1e-6
TEXT_LENGTH_MAX = 256
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_SPELLINGS = {
    "fp64": "float64 double f64",
    "fp32": "float32 float single f32 32-true",
    "tf32": "tensorfloat32 tensorfloat-32",
    "bf16": "bfloat16 bf16-mixed bf16-true",
    "fp16": "float16 half f16 16-mixed 16-true",
    "fp8": "float8 f8 float8_e4m3 float8_e5m2 float8_e4m3fn float8_e4m3fnuz float8_e5m2fnuz float8_e4m3b11fnuz",
    "int8": "i8",
}
_DTYPE_OF = {word: dtype for dtype, words in _SPELLINGS.items() for word in (dtype, *words.split())}
_MODULE = re.compile(r"^(torch|jnp|jax\.numpy|numpy|np|tl)\.")
_SEPARATORS = re.compile(r"[\s_-]+")
_VENDOR = re.compile(r"^(nvidia |amd )?(tesla )?")


@dataclass(frozen=True)
class Device:
    """One kind of accelerator: `peaks` maps a dtype of `DTYPES` to dense FLOP/s of one visible device."""

    name: str
    peaks: MappingProxyType
    source: str


def find(device: str) -> Device | None:
    """The listed device of this name, or None."""
    if not isinstance(device, str) or len(device) > TEXT_LENGTH_MAX:
        return None
    return _find(device)


@lru_cache(maxsize=256)
def _find(device: str) -> Device | None:
    """Cached, since an account looks up the device of every rank."""
    text = device.replace("(R)", "").replace("(TM)", "").replace("®", "").replace("™", "")
    text = _SEPARATORS.sub(" ", text.strip().lower())
    text = _VENDOR.sub("", text)
    return next((known for pattern, known in _TABLE if pattern.fullmatch(text)), None)


def peak(device: str, dtype: str) -> float | None:
    """Dense FLOP/s of one device for products in `dtype`, or None where anything about it is unknown.

    `dtype` is one dtype or shares of the model FLOPs (see `shares`). With shares the times at peak add up, so the
    result is the weighted harmonic mean, 1 / sum(share / peak). Never raises: a text that `shares` refuses gives
    None, and `shares` says why.
    """
    known = find(device)
    try:
        parts = shares(dtype)
    except ValueError:
        return None
    if known is None or any(part not in known.peaks for part in parts):
        return None
    if len(parts) == 1:
        return known.peaks[next(iter(parts))]
    return 1 / math.fsum(share / known.peaks[part] for part, share in parts.items())


def shares(dtype: str) -> dict[str, float]:
    """`dtype` as shares by name of `DTYPES`: "bf16" is {"bf16": 1.0}, "bf16=0.8,fp8=0.2" both; zeros are left out.

    Raises ValueError, saying what is wrong, for an unknown dtype, one named twice, a share outside 0..1, and shares
    that do not sum to 1 within 1e-6: they are not scaled, since what is missing may be the slow part.
    """
    if not isinstance(dtype, str):
        dtype = str(dtype)
    if len(dtype) > TEXT_LENGTH_MAX:
        raise ValueError(f"a dtype text has at most {TEXT_LENGTH_MAX} characters")
    if "=" not in dtype:
        return {_named(dtype): 1.0}
    found: dict[str, float] = {}
    for part in dtype.split(","):
        word, _, number = part.partition("=")
        name, share = _named(word), _share(part, number)
        if name in found:
            raise ValueError(f"{name} is named twice in {dtype!r}")
        found[name] = share
    total = math.fsum(found.values())
    if round(abs(total - 1), 12) > SHARES_OFF_MAX:
        raise ValueError(f"the shares of {dtype!r} sum to {total:.6g}, not 1")
    return {name: share for name, share in found.items() if share}


def _named(word: str) -> str:
    text = word.strip().lower()
    name = _DTYPE_OF.get(_MODULE.sub("", text))
    if name is None:
        raise ValueError(f"unknown dtype {word.strip()[:40]!r}; known are {', '.join(DTYPES)}")
    return name


def _share(part: str, number: str) -> float:
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise ValueError(f"want a share from 0 to 1 in {part.strip()[:40]!r}")
    return share


def _tera(**figures: float) -> MappingProxyType:
    """TFLOP/s as FLOP/s, exactly as a decimal would be read."""
    return MappingProxyType({dtype: float(f"{figure}e12") for dtype, figure in figures.items()})


# The GH100 of the SXM module; the H200 and the Grace Hopper carry the same chip with more memory.
_GH100 = _tera(fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, int8=1978.9)
_A100 = _tera(fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624)
_NVL = _tera(fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5, int8=1670.5)
_CDNA3 = _tera(fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9, int8=2614.9)

# (pattern over the whole name in lower case, without vendor, separators as one blank; name; figures; source).
_ROWS = (
    (
        r"v100 sxm2( (16|32)gb)?",
        "V100 SXM2",
        _tera(fp32=15.7, fp16=125),
        "NVIDIA V100 Tensor Core GPU data sheet (2020)",
    ),
    (
        r"v100 pcie( (16|32)gb)?",
        "V100 PCIe",
        _tera(fp32=14, fp16=112),
        "NVIDIA V100 Tensor Core GPU data sheet (2020)",
    ),
    (
        r"v100s pcie( 32gb)?",
        "V100S PCIe",
        _tera(fp32=16.4, fp16=130),
        "NVIDIA V100 Tensor Core GPU data sheet (2020)",
    ),
    (r"t4", "T4", _tera(fp32=8.1, fp16=65, int8=130), "NVIDIA T4 Tensor Core GPU data sheet"),
    (
        r"a10",
        "A10",
        _tera(fp32=31.2, tf32=62.5, bf16=125, fp16=125, int8=250),
        "NVIDIA A10 Tensor Core GPU data sheet",
    ),
    (
        # The cloud's own variant: GeForce-like, half of the A10 per unit and clock.
        r"a10g",
        "A10G",
        _tera(fp32=35, tf32=35, bf16=70, fp16=70, int8=140),
        "NVIDIA A10G data sheet for Amazon EC2 G5 (2022); others copy the A10's 125",
    ),
    (
        r"a30",
        "A30",
        _tera(fp32=10.3, tf32=82, bf16=165, fp16=165, int8=330),
        "NVIDIA A30 Tensor Core GPU data sheet",
    ),
    (
        r"a40",
        "A40",
        _tera(fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7, int8=299.3),
        "NVIDIA A40 data sheet",
    ),
    (
        # Both forms have the same figures, so the bare name is no guess; the 64 GB part is another chip.
        r"a100( sxm4?( (40|80)gb)?| pcie( (40|80)gb)?| 80gb pcie)?",
        "A100",
        _A100,
        "NVIDIA A100 Tensor Core GPU data sheet",
    ),
    (
        r"l4",
        "L4",
        _tera(fp32=30.3, tf32=60, bf16=121, fp16=121, fp8=242.5, int8=242.5),
        "NVIDIA L4 Tensor Core GPU data sheet, sparse figures halved",
    ),
    (
        r"l40",
        "L40",
        _tera(fp32=90.5, tf32=90.5, bf16=181.05, fp16=181.05, fp8=362, int8=362),
        "NVIDIA L40 data sheet",
    ),
    (
        r"l40s",
        "L40S",
        _tera(fp32=91.6, tf32=183, bf16=362.05, fp16=362.05, fp8=733, int8=733),
        "NVIDIA L40S data sheet (its sparse 733 would give 366.5 for bf16)",
    ),
    (
        # A bare "H100" is unknown: SXM, PCIe and NVL differ by up to 31 %.
        r"h100 (80gb hbm3|sxm5?( 80gb)?)",
        "H100 SXM",
        _GH100,
        "NVIDIA H100 Tensor Core GPU Architecture white paper; data sheet: sparse 1,979 for bf16, halved 989.5",
    ),
    (
        r"h100 (pcie( 80gb)?|80gb pcie)",
        "H100 PCIe",
        _tera(fp32=51.2, tf32=378, bf16=756, fp16=756, fp8=1513, int8=1513),
        "NVIDIA H100 Tensor Core GPU Architecture white paper; data sheet: sparse 1,513 for bf16, halved 756.5",
    ),
    (
        r"h100 nvl",
        "H100 NVL",
        _NVL,
        "NVIDIA H100 Tensor Core GPU data sheet (2024), sparse figures of one of the two cards, halved",
    ),
    (
        r"gh200 (480gb|120gb|144g hbm3e)",
        "GH200",
        _GH100,
        "NVIDIA GH200 Grace Hopper Superchip data sheet, sparse 1,979 for bf16, halved: the H100 SXM's chip",
    ),
    (
        r"h200( sxm)?",
        "H200",
        _GH100,
        "NVIDIA H200 Tensor Core GPU data sheet, sparse 1,979 for bf16, halved: the H100 SXM's chip",
    ),
    (r"h200 nvl", "H200 NVL", _NVL, "NVIDIA H200 Tensor Core GPU data sheet, sparse figures halved"),
    (
        r"b200",
        "B200",
        _tera(fp32=75, tf32=1100, bf16=2250, fp16=2250, fp8=4500, int8=4500),
        "NVIDIA Blackwell data sheet (2024), HGX B200 per GPU (two dies, one device), sparse figures halved",
    ),
    (
        r"gb200",
        "GB200",
        _tera(fp32=80, tf32=1250, bf16=2500, fp16=2500, fp8=5000, int8=5000),
        "NVIDIA Blackwell data sheet (2024), GB200 NVL72 per GPU (two dies, one device), sparse figures halved",
    ),
    (
        r"(geforce )?rtx 3090",
        "GeForce RTX 3090",
        _tera(fp32=35.6, tf32=35.6, bf16=71, fp16=71, int8=284),
        "NVIDIA Ampere GA102 GPU Architecture white paper, fp32 accumulate",
    ),
    (
        r"(geforce )?rtx 4090",
        "GeForce RTX 4090",
        _tera(fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3, int8=660.6),
        "NVIDIA Ada GPU Architecture white paper, fp32 accumulate",
    ),
    (
        r"(geforce )?rtx 5090",
        "GeForce RTX 5090",
        _tera(fp32=104.8, tf32=104.8, bf16=209.5, fp16=209.5, fp8=419, int8=838),
        "NVIDIA RTX Blackwell GPU Architecture white paper, fp32 accumulate",
    ),
    (
        r"rtx a6000",
        "RTX A6000",
        _tera(fp32=38.7, tf32=77.4, bf16=154.8, fp16=154.8, int8=309.7),
        "NVIDIA Ampere GA102 GPU Architecture white paper",
    ),
    (
        r"rtx 6000 ada( generation)?",
        "RTX 6000 Ada",
        _tera(fp32=91.1, tf32=182.1, bf16=364.2, fp16=364.2, fp8=728.5, int8=728.5),
        "NVIDIA RTX 6000 Ada data sheet (1,457 for sparse fp8, halved) and professional Ada white paper",
    ),
    (
        # ROCm shows each of the card's two dies as a device of its own.
        r"instinct mi250x",
        "MI250X (one of two dies)",
        _tera(fp32=47.85, bf16=191.5, fp16=191.5, int8=191.5),
        "AMD Instinct MI250X data sheet: 383 for bf16 and 95.7 for fp32 matrix per card, halved for one die",
    ),
    (r"instinct mi300x( oam)?", "MI300X", _CDNA3, "AMD Instinct MI300X data sheet"),
    (r"instinct mi325x( oam)?", "MI325X", _CDNA3, "AMD Instinct MI325X data sheet"),
    (
        r"tpu v4",
        "TPU v4",
        _tera(bf16=275, int8=275),
        "Google Cloud TPU v4 documentation, per chip (one JAX device)",
    ),
    (
        r"tpu v5( lite|e)",
        "TPU v5e",
        _tera(bf16=197, int8=393),
        "Google Cloud TPU v5e documentation, per chip",
    ),
    # JAX calls the v5p "TPU v5".
    (
        r"tpu v5p?",
        "TPU v5p",
        _tera(bf16=459),
        "Google Cloud TPU v5p documentation, per chip (one JAX device)",
    ),
    (
        r"tpu v6( lite|e)",
        "TPU v6e",
        _tera(bf16=918, int8=1836),
        "Google Cloud TPU v6e documentation, per chip",
    ),
)
_TABLE = tuple((re.compile(pattern), Device(name, peaks, source)) for pattern, name, peaks, source in _ROWS)
DEVICES = tuple(device for _, device in _TABLE)
