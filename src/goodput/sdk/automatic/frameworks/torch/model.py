"""Reads device, dtype and FLOPs of the model at the first training call, and starts the device clock.

Models of Hugging Face transformers have a FLOP formula (transformer_sizes.py), applied to the tokens of the first step.
With GOODPUT_COUNT_FLOPS=1 other models are counted once by goodput.flops; otherwise their FLOPs stay unknown.
"""

from __future__ import annotations

import weakref

from goodput.sdk.automatic.trainer_progress import DTYPES
from goodput.sdk.device.torch_events import describe, device_clock

MODULE = "torch"
RELIES_ON = """torch/amp/autocast_mode.py: torch.get_autocast_dtype and torch.is_autocast_enabled take a device type."""


def apply(torch, auto) -> None:
    model = Model(torch, auto)
    auto.roots.first_call.append(model.first_call)
    auto.before_first_step.append(model.first_step)


class Model:
    """The model of the first step. Keeps nothing of the user's alive, except the batch if FLOPs are counted."""

    def __init__(self, torch, auto):
        self.torch, self.auto = torch, auto
        self.module = self.tokens = self.call = None
        self.is_known = False
        self.counts = auto.session.environ.get("GOODPUT_COUNT_FLOPS", "") not in ("", "0")

    def first_call(self, module, args, kwargs) -> None:
        """The first training call of a root module."""
        parameter = next(iter(module.parameters()), None)
        if parameter is None or self.is_known:
            return
        self.is_known, self.module = True, weakref.ref(module)
        self.tokens = tokens_of(args, kwargs)
        if self.counts:
            self.call = args, kwargs
        session = self.auto.session
        session.declare(dtype=self._dtype(parameter))
        if parameter.device.type not in ("cpu", "meta"):
            session.declare(**describe(self.torch))
            self.auto.device_used = True
            if self.auto.recorder.device is None:
                device_clock(self.auto.recorder, self.torch)

    def _dtype(self, parameter) -> str | None:
        torch, kind = self.torch, parameter.device.type
        dtype = parameter.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        name = DTYPES.get(str(dtype).rpartition(".")[2])
        if name == "fp32" and kind == "cuda" and torch.backends.cuda.matmul.allow_tf32:
            return "tf32"
        return name

    def first_step(self) -> None:
        """The end of the first step, when the number of its backward passes is known."""
        module = self.module() if self.module is not None else None
        call, self.call, self.module = self.call, None, None
        if module is None:
            return
        passes = max(self.auto.recorder.micro_batches, 1)
        flops = transformer_flops(module, self.tokens)
        if flops is None and call is not None:
            from goodput.flops import count

            with self.auto.compile:
                counted = count(module, *call[0], **call[1])
            flops = counted.model_flops, counted.hardware_flops
        if flops is not None:
            model, hardware = (float(each) * passes for each in flops)
            self.auto.session.declare(flops_per_step=model, hardware_flops_per_step=hardware)


def tokens_of(args, kwargs) -> tuple[int, int] | None:
    """(tokens of the batch, tokens of a sequence); None for a batch without token ids."""
    tokens = kwargs.get("input_ids", args[0] if args else None)
    try:
        if len(getattr(tokens, "shape", ())) != 2 or tokens.is_floating_point():
            return None
        return tokens.numel(), tokens.shape[1]
    except Exception:
        return None  # Not a tensor, or a nested one.


def transformer_flops(module, tokens: tuple[int, int] | None) -> tuple[float, float] | None:
    """(model, hardware) FLOPs of one forward and backward pass over these tokens; None if no formula applies."""
    from goodput.sdk.automatic.transformer_sizes import sizes_of

    for wrapped in ("_orig_mod", "module", "_orig_mod"):
        module = getattr(module, wrapped, module)
    sizes = sizes_of(module)
    if sizes is None or tokens is None:
        return None
    found = sizes.flops(*tokens, bool(getattr(module, "is_gradient_checkpointing", False)))
    return found.model, found.hardware
