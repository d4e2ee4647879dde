"""The FLOPs of one training step, counted on a copy of the model that has shapes and no data.

In: a model and one microbatch of inputs, on any device, the meta device too. Out: FLOPs for `goodput.start`, and the
shares of the dtypes its products ran in. PyTorch's own counter (`torch.utils.flop_counter.FlopCounterMode`) counts
while a copy on the meta device runs forward and backward. Files: twin.py (the copy), tally.py (what is counted).

Guarantee: the live model is only looked at. The copy is made from the parameters' shapes, without wrappers (compile,
DDP, DataParallel, `fully_shard`) and without hooks; no parameter is read, no device memory is taken, nothing runs on
the device; gradients, buffers, and the random states of Python, NumPy and PyTorch (on the host) stay as they are,
also when it fails. What cannot be copied, or has an operator without a meta kernel (FlexAttention, among others),
raises FlopCountError. A model of 32 layers takes about 2 s, most of it once for PyTorch's own imports, whatever its
width: call it once, before training.

How it counts: a multiply-add is two FLOPs; only products are counted (matrices, convolutions, attention), and what
looks like one but has no formula is named in `uncounted`. What a backward pass runs with gradients enabled is
activation checkpointing at work: that is in `hardware_flops` and not in `model_flops`. Attention counts in full,
causal or not, with 4 products in its backward pass, as in PaLM; fused kernels do a fifth one, which is not counted.
The weight gradient of grouped convolutions has our own formula: PyTorch 2.13 counts it `groups` times.

Does not know: other ranks. With data parallelism the result is this rank's; an unsharded copy of what tensor,
pipeline or context parallelism shares out gives the FLOPs of all ranks that share it: divide.

    counted = count(model, tokens, targets, autocast="bf16", microbatches=8)
    goodput.start(flops_per_step=counted.model_flops, hardware_flops_per_step=counted.hardware_flops,
                  dtype=counted.dtype)
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from typing import Any, NamedTuple

# Where wrappers are defined: a model of the user's may have a child called `module` too.
_WRAPPERS = ("torch.nn.parallel.", "torch.distributed.", "deepspeed.", "accelerate.", "lightning.")
_WRAPPERS_DEEP_MAX = 16
_TEXT_LENGTH_MAX = 300


class FlopCountError(Exception):
    """The model cannot be counted; the text says why. Nothing was changed."""


class Counted(NamedTuple):
    """FLOPs of one step. `dtype` is for `goodput.start`; `uncounted` names operators whose FLOPs may be missing."""

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
    **keywords: Any,
) -> Counted:
    """Count one step of `model(*inputs, **keywords)`; of the inputs only shapes and dtypes matter.

    Args:
        backward: count the backward pass too; False for inference.
        loss: called with the model's output, returns what backward starts from. Without it that is the output's
            `loss` where it has one, else all its tensors.
        autocast: the dtype of autocast, such as "bf16", as if inside `torch.autocast`; a surrounding autocast, or
            one in the model, is seen without it.
        microbatches: how often one step does this (gradient accumulation).

    Raises FlopCountError when it cannot be counted.
    """
    try:
        import torch

        from goodput.flops.tally import Tally, counting, float32_names
        from goodput.flops.twin import OnMeta, device_types, twin_of
    except ImportError as error:
        raise FlopCountError(f"counting FLOPs needs PyTorch 2.4 or later ({error})") from error
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise FlopCountError(f"microbatches={microbatches!r}: want a whole number from 1")
    plain = unwrap(model)
    if not isinstance(plain, torch.nn.Module) or isinstance(plain, torch.jit.ScriptModule):
        raise FlopCountError(f"want an unscripted torch.nn.Module, not {type(plain).__name__}")
    try:
        types = device_types(plain, inputs, keywords)
        tally, mode = Tally(float32_names(types)), OnMeta(types)
        with (
            _kept(torch),
            torch.inference_mode(False),
            torch.enable_grad(),
            _autocast(torch, types, autocast),
        ):
            twin = twin_of(plain, mode)
            with mode:
                inputs, keywords = copy.deepcopy((inputs, keywords), mode.memo)
            with counting(tally), torch.device("meta"), mode:
                output = twin(*inputs, **keywords)
                if backward:
                    starts = _starts(torch, output if loss is None else loss(output))
                    tally.backward = True
                    # Ones in full: some meta kernels refuse the strides of a sum's gradient.
                    torch.autograd.backward(starts, [torch.ones_like(start) for start in starts])
    except FlopCountError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:_TEXT_LENGTH_MAX]
        raise FlopCountError(f"cannot count {type(plain).__name__}: {text}") from error
    flops = tally.model * microbatches, tally.hardware * microbatches
    return Counted(*flops, tally.dtype(), tuple(sorted(tally.uncounted)))


def unwrap(model: Any) -> Any:
    """The module inside torch.compile, DDP, DataParallel, FSDP or an engine's wrapper."""
    for _ in range(_WRAPPERS_DEEP_MAX):
        children = getattr(model, "__dict__", {}).get("_modules") or {}
        inner = children.get("_orig_mod")
        if inner is None and type(model).__module__.startswith(_WRAPPERS):
            inner = children.get("module")
        if inner is None:
            break
        model = inner
    return model


def _starts(torch: Any, output: Any) -> list:
    """What backward starts from: the output's loss, else all in it that depends on a parameter."""
    from torch.utils._pytree import tree_leaves

    named = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    leaves = [named] if isinstance(named, torch.Tensor) else tree_leaves(output)
    leaves = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad and t.is_floating_point()]
    if not leaves:
        raise FlopCountError(
            "nothing in the output depends on a parameter that trains: pass loss= or backward=False"
        )
    return leaves


def _autocast(torch: Any, types: tuple[str, ...], dtype: Any):
    if dtype is None:
        return contextlib.nullcontext()
    names = {
        "bf16": torch.bfloat16,
        "bfloat16": torch.bfloat16,
        "fp16": torch.float16,
        "float16": torch.float16,
    }
    found = names.get(str(dtype).replace("torch.", ""))
    if found is None:
        raise FlopCountError(f"autocast={dtype!r}: want one of {', '.join(names)}")
    return torch.autocast(types[0] if len(types) == 1 else "cpu", dtype=found)


@contextlib.contextmanager
def _kept(torch: Any):
    """Random states and PyTorch's switches as they were, afterwards."""
    numpy = sys.modules.get("numpy")
    states = random.getstate(), torch.random.get_rng_state(), numpy and numpy.random.get_state()
    cuda = torch.backends.cuda
    allowed = getattr(cuda, "fp16_bf16_reduction_math_sdp_allowed", lambda: None)()
    eager = contextlib.nullcontext()
    if "torch._dynamo" in sys.modules:
        # A function in the model that is compiled on its own would be compiled for the copy.
        eager = torch.compiler.set_stance("force_eager")
    try:
        if allowed is not None:
            # Else attention on the meta device widens to fp32, and its share of the dtypes is wrong.
            cuda.allow_fp16_bf16_reduction_math_sdp(True)
        with eager:
            yield
    finally:
        if allowed is not None:
            cuda.allow_fp16_bf16_reduction_math_sdp(allowed)
        random.setstate(states[0])
        torch.random.set_rng_state(states[1])
        if numpy:
            numpy.random.set_state(states[2])
