"""Dense peak FLOP/s of known accelerators by dtype, each with its source; an unknown device is unknown.

Names match as PyTorch, NVML, DCGM, ROCm or JAX spell them, and as a whole: a slice (MIG, vGPU, a virtual function), a
laptop chip or an unlisted model does not get the figures of the device it resembles. Figures are of one device as the
runtime shows it (one die of an MI250X, both of a B200), at the vendor's boost clock and without structured sparsity:
where the vendor prints the sparse figure alone it is halved. Where sources disagree the vendor's data sheet counts. A
dtype without a matrix rate (bf16 on a V100) is unknown. An MI300X in CPX mode shows eight devices under the name of
the whole; it is not detected.

"fp32" is the rate without TF32; on AMD the matrix cores' fp32. fp16, bf16 and fp8 are the rates with fp32
accumulation, which training uses. GeForce cards have half of their rate then, so the figure is half of the one often
quoted (RTX 4090: 165 TFLOP/s, not 330).

    peak("NVIDIA H100 80GB HBM3", "torch.bfloat16")     # 989.4e12
    peak("AMD Instinct MI300X", "bf16=0.8,fp8=0.2")     # 1452.7e12
    peak("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16")    # None
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
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
    """Dense FLOP/s of one device for products in `dtype`, or None if the device, a dtype or its rate is unknown.

    `dtype` is one dtype or shares of the model FLOPs (see `shares`). With shares the times at peak add up, so the
    result is the weighted harmonic mean, 1 / sum(share / peak). Never raises: None for a text that `shares` rejects.
    """
    return _peak(str(device), str(dtype)) if len(str(dtype)) <= TEXT_LENGTH_MAX else None


@lru_cache(maxsize=256)
def _peak(device: str, dtype: str) -> float | None:
    """Cached, since an account needs the peak of every rank."""
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

    Raises ValueError for an unknown dtype, one named twice, a share outside 0..1, and shares that do not sum to 1
    within 1e-6: they are not scaled, since what is missing may be the slow part.
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
    name = _DTYPE_OF.get(_MODULE.sub("", word.strip().lower()))
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


# Unindented lines are sources. A device has a name, its TFLOP/s in the order of _COLUMNS, and a pattern for the whole
# name in lower case, without vendor and with single spaces as separators (by default the name).
_COLUMNS = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_TABLE_TEXT = """
NVIDIA V100 Tensor Core GPU data sheet (2020)
  V100 SXM2           15.7       -       -     125       -       -  v100 sxm2( (16|32)gb)?
  V100 PCIe             14       -       -     112       -       -  v100 pcie( (16|32)gb)?
  V100S PCIe          16.4       -       -     130       -       -  v100s pcie( 32gb)?
NVIDIA T4 Tensor Core GPU data sheet
  T4                   8.1       -       -      65       -     130
NVIDIA A10 Tensor Core GPU data sheet
  A10                 31.2    62.5     125     125       -     250
NVIDIA A10G data sheet for Amazon EC2 G5 (2022); others copy the A10's 125
  # The cloud's own variant: GeForce-like, half of the A10 per unit and clock.
  A10G                  35      35      70      70       -     140
NVIDIA A30 Tensor Core GPU data sheet
  A30                 10.3      82     165     165       -     330
NVIDIA A40 data sheet
  A40                 37.4    74.8   149.7   149.7       -   299.3
NVIDIA A100 Tensor Core GPU data sheet
  # SXM and PCIe have the same figures, so the bare name is no guess; the 64 GB part is another chip.
  A100                19.5     156     312     312       -     624  a100( (sxm4?|pcie)( (40|80)gb)?| 80gb pcie)?
NVIDIA L4 Tensor Core GPU data sheet, sparse figures halved
  L4                  30.3      60     121     121   242.5   242.5
NVIDIA L40 data sheet
  L40                 90.5    90.5  181.05  181.05     362     362
NVIDIA L40S data sheet (its sparse 733 would give 366.5 for bf16)
  L40S                91.6     183  362.05  362.05     733     733
NVIDIA H100 Tensor Core GPU Architecture white paper; data sheet: sparse 1,979 for bf16, halved 989.5
  # A bare "H100" is unknown: SXM, PCIe and NVL differ by up to 31 %.
  H100 SXM            66.9   494.7   989.4   989.4  1978.9  1978.9  h100 (80gb hbm3|sxm5?( 80gb)?)
NVIDIA H100 Tensor Core GPU Architecture white paper; data sheet: sparse 1,513 for bf16, halved 756.5
  H100 PCIe           51.2     378     756     756    1513    1513  h100 (pcie( 80gb)?|80gb pcie)
NVIDIA H100 Tensor Core GPU data sheet (2024), sparse figures of one of the two cards, halved
  H100 NVL              60   417.5   835.5   835.5  1670.5  1670.5
NVIDIA GH200 Grace Hopper Superchip data sheet, sparse 1,979 for bf16, halved: the H100 SXM's chip
  GH200               66.9   494.7   989.4   989.4  1978.9  1978.9  gh200 (480gb|120gb|144g hbm3e)
NVIDIA H200 Tensor Core GPU data sheet, sparse 1,979 for bf16, halved: the H100 SXM's chip
  H200                66.9   494.7   989.4   989.4  1978.9  1978.9  h200( sxm)?
NVIDIA H200 Tensor Core GPU data sheet, sparse figures halved
  H200 NVL              60   417.5   835.5   835.5  1670.5  1670.5
NVIDIA Blackwell data sheet (2024), HGX B200 per GPU (two dies, one device), sparse figures halved
  B200                  75    1100    2250    2250    4500    4500
NVIDIA Blackwell data sheet (2024), GB200 NVL72 per GPU (two dies, one device), sparse figures halved
  GB200                 80    1250    2500    2500    5000    5000
NVIDIA Ampere GA102 GPU Architecture white paper, fp32 accumulate
  GeForce RTX 3090    35.6    35.6      71      71       -     284  (geforce )?rtx 3090
NVIDIA Ada GPU Architecture white paper, fp32 accumulate
  GeForce RTX 4090    82.6    82.6   165.2   165.2   330.3   660.6  (geforce )?rtx 4090
NVIDIA RTX Blackwell GPU Architecture white paper, fp32 accumulate
  GeForce RTX 5090   104.8   104.8   209.5   209.5     419     838  (geforce )?rtx 5090
NVIDIA Ampere GA102 GPU Architecture white paper
  RTX A6000           38.7    77.4   154.8   154.8       -   309.7
NVIDIA RTX 6000 Ada data sheet (1,457 for sparse fp8, halved) and professional Ada white paper
  RTX 6000 Ada        91.1   182.1   364.2   364.2   728.5   728.5  rtx 6000 ada( generation)?
AMD Instinct MI250X data sheet: 383 for bf16 and 95.7 for fp32 matrix per card, halved for one die
  # ROCm shows each of the card's two dies as a device of its own.
  MI250X (one of two dies)   47.85       -   191.5   191.5       -   191.5  instinct mi250x
AMD Instinct MI300X data sheet
  MI300X             163.4   653.7  1307.4  1307.4  2614.9  2614.9  instinct mi300x( oam)?
AMD Instinct MI325X data sheet
  MI325X             163.4   653.7  1307.4  1307.4  2614.9  2614.9  instinct mi325x( oam)?
Google Cloud TPU v4 documentation, per chip (one JAX device)
  TPU v4                 -       -     275       -       -     275
Google Cloud TPU v5e documentation, per chip
  TPU v5e                -       -     197       -       -     393  tpu v5( lite|e)
Google Cloud TPU v5p documentation, per chip (one JAX device)
  # JAX calls the v5p "TPU v5".
  TPU v5p                -       -     459       -       -       -  tpu v5p?
Google Cloud TPU v6e documentation, per chip
  TPU v6e                -       -     918       -       -    1836  tpu v6( lite|e)
"""


def _devices() -> Iterator[tuple[re.Pattern, Device]]:
    """The rows of the table, each with the pattern that a whole name has to match."""
    source = ""
    for line in _TABLE_TEXT.strip().splitlines():
        if not line.startswith(" "):
            source = line
        elif not line.startswith("  #"):
            name, *columns = re.split(r"  +", line.strip())
            figures, pattern = columns[: len(_COLUMNS)], (columns[len(_COLUMNS) :] or [name.lower()])[0]
            # The decimal is parsed with its exponent: 19.5 * 1e12 would not always be the nearest float.
            rates = {d: float(f"{tera}e12") for d, tera in zip(_COLUMNS, figures, strict=True) if tera != "-"}
            yield re.compile(pattern), Device(name, MappingProxyType(rates), source)


_TABLE = tuple(_devices())
DEVICES = tuple(device for _, device in _TABLE)
