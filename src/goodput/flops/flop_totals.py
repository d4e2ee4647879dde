"""Sums FLOPs by dtype, and separates the model's own from recomputed ones.

PyTorch's `FlopCounterMode` calls the formulae here; at the end its total must equal ours.

    with counting(totals):
        model(x).sum().backward()
    totals.model, totals.dtype()      # 1536, "bf16=0.93,fp32=0.07"
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from goodput.account.mfu import peaks
from goodput.flops.errors import FlopCountError

_SHARE_DIGITS = 6
_LOOKS_LIKE_PRODUCT = re.compile(
    r"mm$|mm_|mv$|\bdot$|conv|attention|attn|matmul|linear|einsum|rnn|lstm|gru$|cdist"
)
# Operators of these namespaces are products only if their name looks like one; collectives never are.
_KNOWN_NAMESPACES = ("aten", "prim", "prims", "c10d", "_c10d_functional")


class FlopTotals:
    """FLOPs so far: `model`, also by dtype, and `hardware`, which includes recomputation."""

    def __init__(self, float32_names: tuple[str, str] = ("fp32", "fp32")):
        self.float32_names = float32_names
        self.by_dtype: dict[str, int] = {}
        self.model = self.hardware = 0
        self.backward = False
        self.uncounted: set[str] = set()

    def add(self, flops: int, dtype: torch.dtype | None, convolution: bool, recomputed: bool) -> None:
        self.hardware += flops
        if recomputed:
            return
        self.model += flops
        try:
            (name,) = peaks.shares(str(dtype))
        except ValueError:
            name = str(dtype).replace("torch.", "")
        if name == "fp32":
            name = self.float32_names[convolution]
        self.by_dtype[name] = self.by_dtype.get(name, 0) + flops

    def dtype(self) -> str:
        """Shares of the model FLOPs, largest first, such as "bf16=0.9,fp32=0.1"; the name alone for a single dtype.

        The rounded shares sum to exactly 1.
        """
        ranked = sorted(self.by_dtype.items(), key=lambda item: (-item[1], item[0]))
        rest = {name: round(flops / self.model, _SHARE_DIGITS) for name, flops in ranked[1:]}
        rest = {name: share for name, share in rest.items() if share}
        if not rest:
            return ranked[0][0] if ranked else ""
        shares = {ranked[0][0]: 1 - sum(rest.values()), **rest}
        return ",".join(f"{name}={share:.{_SHARE_DIGITS}f}".rstrip("0") for name, share in shares.items())


@contextlib.contextmanager
def counting(totals: FlopTotals):
    """Count the operators run in this context. Raises FlopCountError if PyTorch's counter has another total."""
    counter = FlopCounterMode(display=False, custom_mapping=_formulas(totals))
    counter.mod_tracker = _NoModuleTracker()  # pyright: ignore[reportAttributeAccessIssue] - duck-typed
    with _UncountedMode(totals, counter.flop_registry), counter:
        yield
    total = counter.get_total_flops()
    if total != totals.hardware:
        raise FlopCountError(f"counted {totals.hardware} FLOPs, but PyTorch's counter has {total}")


def float32_names(types: tuple[str, ...]) -> tuple[str, str]:
    """The dtype names of fp32 matrix products and fp32 convolutions: tf32 if an NVIDIA GPU has it switched on."""
    if types != ("cuda",) or torch.version.cuda is None or torch.cuda.get_device_capability()[0] < 8:
        return "fp32", "fp32"
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(cuda, "fp32_precision") and hasattr(cudnn, "conv"):
        # Reading the older switches raises once the newer ones were set.
        products, convolutions = cuda.fp32_precision == "tf32", cudnn.conv.fp32_precision == "tf32"
    else:
        products, convolutions = cuda.allow_tf32, cudnn.allow_tf32
    return "tf32" if products else "fp32", "tf32" if convolutions else "fp32"


class _NoModuleTracker:
    """Replaces the counter's tracker, which puts hooks on every module of the process, live ones included."""

    parents = ("Global",)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class _UncountedMode(TorchDispatchMode):
    """Records the operators that may be products and have no formula."""

    def __init__(self, totals: FlopTotals, known: dict):
        super().__init__()
        self.totals, self.known = totals, known

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = getattr(func, "_overloadpacket", func)
        if packet not in self.known:
            foreign = getattr(func, "namespace", "") not in _KNOWN_NAMESPACES
            if foreign or _LOOKS_LIKE_PRODUCT.search(str(packet)):
                self.totals.uncounted.add(str(packet))
        return func(*args, **(kwargs or {}))


def _formulas(totals: FlopTotals) -> dict:
    """PyTorch's formulae and ours, each adding its result to the totals."""

    def adding(operator: Any, formula: Any):
        convolution = "conv" in str(operator)

        def add(*args, out_val=None, **kwargs):
            flops = formula(*args, out_val=out_val, **kwargs)
            dtype = next((arg.dtype for arg in args if isinstance(arg, torch.Tensor)), None)
            # A backward pass runs without gradients, except where checkpointing repeats a forward pass.
            totals.add(flops, dtype, convolution, totals.backward and torch.is_grad_enabled())
            return flops

        add._get_raw = True
        return add

    formulas = {**_OWN_FORMULAS, **flop_registry, torch.ops.aten.convolution_backward: _convolution_backward}
    return {operator: adding(operator, formula) for operator, formula in formulas.items()}


def _convolution_backward(grad, x, weight, *rest, **_) -> int:
    """Each requested gradient takes as many products as the forward pass.

    PyTorch 2.13 counts the weight gradient of a grouped convolution `groups` times.
    """
    transposed, requested = rest[4], rest[7]
    places = (x if transposed else grad).shape[2:].numel()
    return 2 * (requested[0] + requested[1]) * x.shape[0] * places * weight.numel()


def _matrix_vector(matrix, vector, **_) -> int:
    return 2 * matrix.numel()


def _grouped_product(left, right, *_, **__) -> int:
    """Grouped products along one dimension (mixtures of experts); rows beyond the last group are counted too."""
    one_side = left.dim() == 3 and right.dim() == 2
    return 2 * (left[0] if one_side else left).numel() * right.shape[-1]


# Products that PyTorch 2.13 has no formula for.
_OWN_FORMULAS = {
    torch.ops.aten.mv: _matrix_vector,
    torch.ops.aten.dot: _matrix_vector,
    torch.ops.aten.addmv: lambda bias, matrix, vector, **_: _matrix_vector(matrix, vector),
    **({torch.ops.aten._grouped_mm: _grouped_product} if hasattr(torch.ops.aten, "_grouped_mm") else {}),
}
