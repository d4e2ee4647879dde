"""Reads device, dtype and FLOPs of the model at the first training call, and starts the device clock.

Models of Hugging Face transformers have a FLOP formula (transformer_sizes.py), applied to the tokens of the first step.
Other models are counted once, by goodput.flops in a child process (_flop_count.py), unless GOODPUT_COUNT_FLOPS=0.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter

from goodput.defaults import FLOPS_COUNTING
from goodput.sdk.automatic.frameworks.torch._flop_count import FlopCount, reason_against_fork
from goodput.sdk.automatic.trainer_progress import DTYPES
from goodput.sdk.device.torch_events import describe, device_clock
from goodput.user_exceptions import reraise_from_handler

MODULE = "torch"
RELIES_ON = """torch/amp/autocast_mode.py: torch.get_autocast_dtype and torch.is_autocast_enabled take a device type.
torch/backends/cuda/__init__.py: reading matmul.allow_tf32 raises if matmul.fp32_precision was set, where that exists.
torch/distributed/fsdp/_fully_shard/_fsdp_state.py: FSDPState._mp_policy.param_dtype, FSDP1's mixed_precision.param_dtype.
accelerate/state.py: AcceleratorState._shared_state["_mixed_precision"] is "no", "fp16", "bf16" or "fp8"."""
CALLS_MAX = 16  # root modules of one step


def apply(torch, auto) -> None:
    model = Model(torch, auto)
    auto.roots.first_call.append(model.first_call)
    auto.roots.first_step_call.append(model.training_call)
    auto.roots.inner_call = model.inner_call
    auto.first_step_held.append(model.first_step_held)
    auto.before_first_step.append(model.first_step)
    auto.after_step.append(model.collect)
    auto.at_end.append(model.finish)


class Model:
    """The model of the first step. Keeps nothing of the user's alive; of batches it keeps shapes."""

    def __init__(self, torch, auto):
        self.torch, self.auto = torch, auto
        self.module = self.tokens = self.counting = self.kind = None
        self.is_known = self.is_taken = False
        self.dtype: str | None = None  # of the root module's call
        self.weights: Counter[str | None] = Counter()  # by dtype, of the modules that it calls
        # (weak reference, args, keywords, autocast, calls) of each root module's first training call.
        self.calls: list[list] = []
        # (backward passes, number of calls of each of `calls`) where the first step may have ended.
        self.held: tuple[int, list[int]] | None = None
        self.counts = auto.session.environ.get("GOODPUT_COUNT_FLOPS", "1") not in ("", "0")

    def first_call(self, module, args, kwargs) -> None:
        """The first training call of a root module."""
        parameter = next(iter(module.parameters()), None)
        if parameter is None:
            return
        if self.counts and not self.auto.recorder.steps and len(self.calls) <= CALLS_MAX:
            shapes = self._shapes(args), self._shapes(kwargs)
            self.calls.append([weakref.ref(module), *shapes, self._autocast(parameter), 0])
        if self.is_known:
            return
        self.is_known, self.module = True, weakref.ref(module)
        self.tokens = tokens_of(args, kwargs)
        self.kind = parameter.device.type
        self._declare_dtype(self._dtype(module, parameter))
        if self.kind not in ("cpu", "meta"):
            self.auto.session.declare(**describe(self.torch))
            self.auto.device_used = True
            if self.auto.recorder.device is None:
                device_clock(self.auto.recorder, self.torch)

    def inner_call(self, module) -> None:
        """A call inside a training call of a root in the first step, where autocast and FSDP may have set a dtype."""
        if isinstance(module, self.torch.nn.Embedding):
            return
        for parameter in module._parameters.values():
            if parameter is not None and parameter.ndim > 1:
                self.weights[self._dtype(module, parameter)] += parameter.numel()

    def training_call(self, module) -> None:
        """A training call of a root module in the first step."""
        for call in self.calls:
            call[-1] += call[0]() is module

    def _shapes(self, values):
        """The same arguments with tensors on the meta device, which have no data."""
        torch = self.torch
        from torch.utils._pytree import tree_map

        def shape(value):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
                return value
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            return made.requires_grad_(value.requires_grad)

        return tree_map(shape, values)

    def _declare_cpu(self, dtype: str | None) -> None:
        """The CPU's name, and its peak if it was measured after an earlier run (goodput.flops.cpu_peak)."""
        from goodput.flops import cpu_peak

        session, threads = self.auto.session, self.torch.get_num_threads()
        local = session.environ.get("LOCAL_WORLD_SIZE", "")
        # Ranks that share the cores; without a launcher all are taken to be on this host.
        ranks = int(local) if local.isdigit() else session.identity.get("world_size", 1)
        if ranks > 1 and hasattr(os, "sched_getaffinity"):
            threads = min(threads, max(len(os.sched_getaffinity(0)) // ranks, 1))
        name = cpu_peak.device_name(threads)
        peak = cpu_peak.known_peak(name, dtype or "", self.torch.__version__)
        session.declare(device=name, peak_flops_per_second=peak)

    def _autocast(self, parameter) -> str | None:
        kind = parameter.device.type
        if not self.torch.is_autocast_enabled(kind):
            return None
        return str(self.torch.get_autocast_dtype(kind)).rpartition(".")[2]

    def _dtype(self, module, parameter) -> str | None:
        """The dtype in which this parameter of a module is multiplied."""
        torch, kind = self.torch, parameter.device.type
        dtype = _gathered_dtype(module) or parameter.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        name = DTYPES.get(str(dtype).rpartition(".")[2])
        return "tf32" if name == "fp32" and kind == "cuda" and uses_tf32(torch) else name

    def _declare_dtype(self, dtype: str | None) -> None:
        self.dtype = dtype
        self.auto.session.declare(dtype=dtype)
        if self.kind == "cpu":
            self._declare_cpu(dtype)

    def _dtype_of_weights(self) -> str | None:
        """Where no calls inside the root's were seen, as of compiled modules, autocast in its `forward` is Accelerate's."""
        if self.weights:
            return max(self.weights, key=self.weights.__getitem__)
        return (_dtype_of_accelerate() if self.dtype in ("fp32", "tf32") else None) or self.dtype

    def first_step_held(self) -> None:
        self.held = self.auto.training.micro_batches, [call[-1] for call in self.calls]

    def first_step(self) -> None:
        """The end of the first step, when the number of its calls is known."""
        module = self.module() if self.module is not None else None
        calls, self.calls, self.module = self.calls, [], None
        passes = max(self.auto.training.micro_batches, 1)
        if self.held is not None and self.auto.compiled_optimizers.is_confirmed:
            passes, counts = self.held
            calls = [[*call[:-1], count] for call, count in zip(calls, counts, strict=False)]
        self.auto.roots.first_step_call.clear()
        self.auto.roots.inner_call = None
        dtype = self._dtype_of_weights()
        if self.is_known and dtype != self.dtype:
            self._declare_dtype(dtype)
        if module is None:
            return
        flops = transformer_flops(module, self.tokens) if len(calls) < 2 else None
        if flops is not None:
            model, hardware = (float(each * passes) for each in flops)
            self.auto.session.declare(flops_per_step=model, hardware_flops_per_step=hardware)
        elif not self.counts:
            self.auto.session.declare(flops_unknown="GOODPUT_COUNT_FLOPS is off")
        elif self.auto.session.identity.get("flops_per_step") is None:
            self._count([(reference(), *rest) for reference, *rest in calls])

    def _count(self, calls: list[tuple]) -> None:
        """Start the child that counts, or say why there is none."""
        reason = reason_against_fork(self.torch, self.auto.session.environ)
        if not calls or len(calls) > CALLS_MAX or any(call[0] is None or not call[-1] for call in calls):
            reason = "the loop calls modules of which none is left, or too many"
        if reason is None:
            self.auto.session.declare(flops_unknown=FLOPS_COUNTING)
            try:
                self.counting = FlopCount(calls, self.auto)
                self.auto.needs_after_step = True
                return
            except OSError as error:
                reraise_from_handler(error)
                reason = f"cannot start a process that counts them: {error}"
        self.auto.session.declare(flops_unknown=reason)

    def collect(self) -> None:
        """Take the child's result if it is there."""
        counting = self.counting
        if counting is None:
            return
        if counting.parent != os.getpid():
            self.counting = None
            return
        if not self.is_taken:
            found = counting.poll()
            if found is not None:
                self.is_taken = True
                self.auto.session.declare(**found)
        if self.is_taken and counting.is_over():
            self.counting = None
        else:
            self.auto.needs_after_step = True

    def finish(self) -> None:
        """The training has ended: the child writes what it will find into the page itself."""
        if self.counting is not None and self.counting.parent == os.getpid():
            self.counting.trainer_ended()
            self.collect()


def uses_tf32(torch) -> bool:
    """Whether CUDA multiplies matrices of float32 as TF32."""
    matmul = torch.backends.cuda.matmul
    try:
        return matmul.fp32_precision == "tf32"
    except AttributeError:  # before 2.9
        return bool(matmul.allow_tf32)


def _gathered_dtype(module):
    """The dtype in which FSDP gathers a module's parameters; None if it is none of FSDP's, or keeps theirs."""
    state = getattr(type(module), "_get_fsdp_state", None)
    policy = (
        vars(module).get("mixed_precision") if state is None else getattr(state(module), "_mp_policy", None)
    )
    return getattr(policy, "param_dtype", None)


def _dtype_of_accelerate() -> str | None:
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    found = getattr(state, "_shared_state", {}).get("_mixed_precision")
    return found if found in DTYPES.values() else None


def tokens_of(args, kwargs) -> tuple[int, int] | None:
    """(tokens of the batch, tokens of a sequence); None for a batch without token ids."""
    tokens = kwargs.get("input_ids", args[0] if args else None)
    try:
        if len(getattr(tokens, "shape", ())) != 2 or tokens.is_floating_point():
            return None
        return tokens.numel(), tokens.shape[1]
    except Exception as error:
        reraise_from_handler(error)
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
