"""Runs forward and backward on the meta copy of a model while PyTorch's FLOP counter watches.

A multiply-add is two FLOPs. Only products are counted (matrices, convolutions, attention); operators that look like a
product and have no formula are listed in `Counted.uncounted`. What a backward pass runs with gradients enabled is
activation checkpointing: it counts in `hardware_flops` and not in `model_flops`. Attention counts in full, causal or
not, with 4 products in its backward pass, as in the PaLM paper; fused kernels do a fifth, which is not counted.

With data parallelism the result is that of this rank. An unsharded copy of a model that tensor, pipeline or context
parallelism splits gives the FLOPs of all ranks that share it: divide.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from typing import Any, NamedTuple

from goodput.flops.errors import FlopCountError

_MESSAGE_LENGTH_MAX = 300


class Counted(NamedTuple):
    """FLOPs of one step. `dtype` is for `goodput.start`; FLOPs of the operators in `uncounted` may be missing."""

    model_flops: int
    hardware_flops: int
    dtype: str
    uncounted: tuple[str, ...]


def count(
    model: Any,
    *inputs: Any,
    backward: bool = True,
    loss: Any = None,
    autocast: Any = None,
    microbatches: int = 1,
    in_forked_process: bool = False,
    **keywords: Any,
) -> Counted:
    """Count one step of `model(*inputs, **keywords)`; only shapes and dtypes of the inputs matter.

    Args:
        backward: also count the backward pass; False for inference.
        loss: called with the model's output, returns the tensor to run backward from. The default is the output's
            `loss`, or all tensors of the output where it has none.
        autocast: the dtype of autocast, such as "bf16", as if inside `torch.autocast`. Autocast around this call or
            inside the model applies without it.
        microbatches: repetitions in one step (gradient accumulation).
        in_forked_process: use neither the GPU nor the autograd engine, which a forked process does not have;
            `dtype` then takes fp32 for tf32.

    Raises FlopCountError for a model that cannot be copied, or has an operator without a meta kernel (FlexAttention,
    for example).
    """
    try:
        import torch

        from goodput.flops import meta_copy
    except ImportError as error:
        raise FlopCountError(f"counting FLOPs needs PyTorch 2.4 or later ({error})") from error
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise FlopCountError(f"microbatches={microbatches!r} is not an integer of at least 1")
    plain = meta_copy.unwrap(model)
    if not isinstance(plain, torch.nn.Module) or isinstance(plain, torch.jit.ScriptModule):
        raise FlopCountError(f"model is a {type(plain).__name__}, not an unscripted torch.nn.Module")
    try:
        types = meta_copy.device_types(plain, inputs, keywords)
        with (
            _preserved_state(torch),
            torch.inference_mode(False),
            torch.enable_grad(),
            _autocast(torch, types, autocast),
        ):
            totals = _run(torch, plain, types, inputs, keywords, backward, loss, in_forked_process)
    except FlopCountError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE_LENGTH_MAX]
        raise FlopCountError(f"cannot count {type(plain).__name__}: {text}") from error
    flops = totals.model * microbatches, totals.hardware * microbatches
    return Counted(*flops, totals.dtype(), tuple(sorted(totals.uncounted)))


def _run(
    torch, plain, types: tuple[str, ...], inputs: tuple, keywords: dict, backward: bool, loss, forked: bool
):
    """Run the step on the meta copy of `plain`; returns the FlopTotals."""
    from goodput.flops import node_by_node
    from goodput.flops.flop_totals import FlopTotals, counting, float32_names
    from goodput.flops.meta_copy import MetaMode, copy_to_meta

    totals, mode = FlopTotals(("fp32", "fp32") if forked else float32_names(types)), MetaMode(types)
    model = copy_to_meta(plain, mode)
    with mode:
        inputs, keywords = copy.deepcopy((inputs, keywords), mode.memo)
    with counting(totals), torch.device("meta"), mode:
        output = model(*inputs, **keywords)
        if backward:
            roots = _backward_roots(torch, output if loss is None else loss(output))
            totals.backward = True
            # Dense ones: some meta kernels refuse the strides of a sum's gradient.
            run = node_by_node.backward if forked else torch.autograd.backward
            run(roots, [torch.ones_like(root) for root in roots])
    return totals


def _backward_roots(torch: Any, output: Any) -> list:
    """The output's loss, or all of its tensors that depend on a parameter, also those in objects such as distributions."""
    from torch.utils._pytree import tree_leaves

    named = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    leaves = [named] if isinstance(named, torch.Tensor) else tree_leaves(output)
    held = [vars(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor) and hasattr(leaf, "__dict__")]
    leaves += tree_leaves(held)
    leaves = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad and t.is_floating_point()]
    if not leaves:
        raise FlopCountError(
            "no tensor of the output depends on a trainable parameter: pass loss= or backward=False"
        )
    return leaves


@contextlib.contextmanager
def _autocast(torch: Any, types: tuple[str, ...], dtype: Any):
    """As `torch.autocast`, but without its questions to the GPU."""
    if dtype is None:
        yield
        return
    names = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}
    name = names.get(str(dtype).replace("torch.", ""))
    if name is None:
        raise FlopCountError(f"autocast={dtype!r} is not one of {', '.join(names)}")
    kind = types[0] if len(types) == 1 else "cpu"
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, True)
    torch.set_autocast_dtype(kind, getattr(torch, name))
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])


@contextlib.contextmanager
def _preserved_state(torch: Any):
    """Restore random states and PyTorch's switches at the end."""
    numpy = sys.modules.get("numpy")
    states = random.getstate(), torch.random.get_rng_state(), numpy and numpy.random.get_state()
    cuda = torch.backends.cuda
    allowed = getattr(cuda, "fp16_bf16_reduction_math_sdp_allowed", lambda: None)()
    # A distribution that validates its arguments reads them, and on the meta device they have no values.
    distribution = torch.distributions.Distribution
    validates = distribution._validate_args
    eager = contextlib.nullcontext()
    if "torch._dynamo" in sys.modules:
        # A function in the model that is compiled on its own would be compiled for the copy.
        eager = torch.compiler.set_stance("force_eager")
    try:
        distribution.set_default_validate_args(False)
        if allowed is not None:
            # Without it attention on the meta device widens to fp32, and the shares of dtypes are wrong.
            cuda.allow_fp16_bf16_reduction_math_sdp(True)
        with eager:
            yield
    finally:
        distribution.set_default_validate_args(validates)
        if allowed is not None:
            cuda.allow_fp16_bf16_reduction_math_sdp(allowed)
        random.setstate(states[0])
        torch.random.set_rng_state(states[1])
        if numpy:
            numpy.random.set_state(states[2])
