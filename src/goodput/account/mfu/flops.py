"""FLOPs of a training step by formula, and the likely mistake when a utilisation comes out above 100 %.

A multiply-add is two FLOPs. Per token, with N parameters in matrix products, L layers, H query heads of size Q and T
tokens of context:

    forward      2 N + 4 L H Q T          half the second term if causal products are counted as causal
    training     6 N + 12 L H Q T         the backward pass is twice the forward one
    recompute    + what of the forward runs again: all of it ("full"), or 4 L H Q T ("selective")

6 N is from Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section 2.1; the attention term and MFU
without recomputation from Chowdhery et al., "PaLM" (2022), appendix B; recomputation from Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models" (2022). Exact for dense decoders but for what is no
matrix product (norms, softmax, activations: about 1 %), whatever the number of key and value heads (GQA, MQA): N has
their weights, and every query head still meets every key. `goodput.flops` counts a model itself.

    transformer(params=124e6, tokens=8192, microbatches=4, layers=12, heads=12, head_dim=64, context=1024)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from goodput.account.mfu import peaks

RECOMPUTE = ("none", "selective", "full")
# A data sheet's peak is at the vendor's boost clock; devices may run some per cent above it.
SHOWN_PERCENT_MAX = 1_000_000  # of an impossible utilisation
CLOCK_RATIO_MAX = 1.1
# Training jobs run at these utilisations; a mistake that leaves one outside is not likely.
LIKELY_MIN, LIKELY_MAX, TYPICAL = 0.05, 0.98, 0.4
OTHERS_MAX = 2


class Flops(NamedTuple):
    """FLOPs of one step: `model` for MFU, `hardware`, which includes recomputation, for HFU."""

    model: float
    hardware: float


def transformer(
    *,
    params: float,
    tokens: float,
    microbatches: int = 1,
    layers: int = 0,
    heads: int = 0,
    head_dim: int = 0,
    context: float = 0,
    causal: bool = False,
    training: bool = True,
    frozen_params: float = 0,
    recompute: str = "none",
    recomputed_params: float | None = None,
    recomputed_layers: int | None = None,
    model_parallel_ranks: int = 1,
) -> Flops:
    """FLOPs of one step of one rank.

    Args:
        params: parameters that take part in matrix products: without the embedding tables that are only looked
            up, with the output layer (also when it shares its weights with a table). For a mixture of experts the
            active ones: all, less (experts − experts per token) × the parameters of one expert over all layers.
        tokens: of one microbatch of this rank (sequences times their length).
        microbatches: accumulated into one step; a step has microbatches × tokens tokens.
        layers, heads, head_dim, context: for the attention term: layers, query heads, their size and the tokens
            each token attends to (the sequence length, or the window). Left out, the term is.
        causal: count half of the attention term, as kernels that skip the masked half do. PaLM counts all of it,
            and so does the default, so that figures compare with published ones.
        training: with the backward pass; False is the forward pass alone.
        frozen_params: those of `params` that get no gradient (adapters): 4 FLOPs per token, not 6.
        recompute: "none"; "selective": the attention products run again; "full": the forward pass does. PyTorch's
            non-reentrant checkpoints stop before a block's last product, so they do a little less than "full".
        recomputed_params, recomputed_layers: where "full" covers part of the model only (commonly not the output
            layer), that part; where "selective" covers some layers, how many. Default all.
        model_parallel_ranks: ranks that share this work (tensor × pipeline × context parallel); each has its part.

    Raises ValueError for numbers that cannot be.
    """
    given = {"params": params, "tokens": tokens, "frozen_params": frozen_params, "context": context}
    given.update(layers=layers, heads=heads, head_dim=head_dim)
    again_params = params if recomputed_params is None else recomputed_params
    again_layers = layers if recomputed_layers is None else recomputed_layers
    _check({**given, "recomputed_params": again_params, "recomputed_layers": again_layers}, least=0)
    _check({"microbatches": microbatches, "model_parallel_ranks": model_parallel_ranks}, least=1)
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute={recompute!r}: want one of {', '.join(RECOMPUTE)}")
    if frozen_params > params or again_params > params or again_layers > layers:
        raise ValueError("a part of the parameters or layers cannot be more than all of them")
    sizes = (layers, heads, head_dim, context)
    if any(sizes) and not all(sizes):
        raise ValueError("the attention term needs layers, heads, head_dim and context, all or none of them")
    layer_attention = (2 if causal else 4) * heads * head_dim * context
    forward = 2 * params + layers * layer_attention
    model = 3 * forward - 2 * frozen_params if training else forward
    again = 0.0
    if training and recompute != "none":
        again = again_layers * layer_attention + (2 * again_params if recompute == "full" else 0)
    scale = tokens * microbatches / model_parallel_ranks
    return Flops(float(model * scale), float((model + again) * scale))


def too_high(
    utilisation: float | None,
    name: str = "MFU",
    *,
    world_size: int = 1,
    microbatches: int = 1,
    devices: int = 1,
    device: str = "",
    dtype: str = "",
    device_clock: float | None = None,
) -> str | None:
    """An error text with the likely reason if `utilisation`, a ratio, is above 1, else None.

    `name` is MFU, HFU or compute efficiency; `device_clock` is the share (0..1) of time on the device's clock. A mistake
    by a factor is named if training reaches the utilisation without it; the most usual one comes first.
    """
    if utilisation is None or utilisation <= 1 or math.isnan(utilisation):
        return None
    percent = 100 * utilisation
    shown = f"{percent:,.0f}" if percent >= 1000 else f"{percent:.4g}"
    if percent > SHOWN_PERCENT_MAX:
        shown = f"over {SHOWN_PERCENT_MAX:,}"
    head = f"{name} of {shown} % is above 100 %, so an input is wrong: "
    if device_clock is not None and device_clock < 1 and name.lower().startswith("compute"):
        return head + (
            f"{100 * (1 - device_clock):.3g} % of the phases' time is the host's, which sees only the launch of "
            "work that the device does later; compute efficiency needs the device's clock."
        )
    reasons = _reasons(world_size, microbatches, devices, device, dtype)
    likely = [(utilisation / factor, text) for factor, text in reasons]
    likely = [pair for pair in likely if LIKELY_MIN <= pair[0] <= LIKELY_MAX]
    likely.sort(key=lambda pair: abs(math.log(pair[0] / TYPICAL)))
    texts = [f"{text} (without that, {100 * rest:.3g} %)" for rest, text in likely]
    if utilisation <= CLOCK_RATIO_MAX:
        low = (
            "peak_flops_per_second is a little low: measured too low, or the clock is above the data sheet's"
        )
        texts.insert(0, low)
    if not texts:
        return (
            head
            + "no single usual mistake explains it; check flops_per_step and peak_flops_per_second, both per rank."
        )
    others = "; or ".join(texts[1 : 1 + OTHERS_MAX])
    return head + f"most likely {texts[0]}" + (f"; or {others}." if others else ".")


def _reasons(world_size: int, microbatches: int, devices: int, device: str, dtype: str):
    """(factor by which it makes the utilisation too high, text) of each usual mistake."""
    if world_size > 1:
        yield world_size, f"flops_per_step is that of all {world_size} ranks and must be one rank's"
    if microbatches > 1:
        yield (
            microbatches,
            f"flops_per_step covers all {microbatches} microbatches, while each microbatch is measured as a step",
        )
    if devices > 1:
        yield devices, f"the peak is that of one device, while this rank drives {devices}"
    yield from _slower_dtypes(device, dtype)
    yield 4 / 3, "flops_per_step includes recomputation, which belongs into hardware_flops_per_step"
    yield (
        2,
        "the peak is that of one of two dies or of a slower dtype, or each multiply-add was counted twice",
    )
    yield 3, "forward and backward are counted (6 N) where forward alone runs (2 N), or the factor 3 twice"


def _slower_dtypes(device: str, dtype: str):
    """Mistakes where the products ran in a faster dtype than `dtype`."""
    taken = peaks.peak(device, dtype) if device and dtype else None
    known = peaks.find(device)
    if taken is None or known is None:
        return
    for faster, rate in known.peaks.items():
        # fp16 is as fast as bf16, and integers do not train.
        if rate > taken and faster not in ("fp16", "int8"):
            yield rate / taken, f"the peak is that of {dtype}, while the products ran in {faster}"


def _check(numbers: dict, least: int) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number < math.inf:
            raise ValueError(f"{name}={number!r}: want a number from {least}")
