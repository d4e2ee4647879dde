"""Copies a model to the meta device: same classes and shapes, without data, hooks and wrappers.

Under MetaMode every tensor that a call meets is replaced by its meta copy, so a forward pass that reaches around the
copied model (a closure over the live one, a target tensor in a loss, an explicit device) still runs on shapes alone.
Of a tensor only shape, strides, dtype and device are read, never data. Autocast has no effect on the meta device, so
MetaMode casts the inputs of products itself.

    mode = MetaMode(device_types(model, (x,), {}))
    meta_model = copy_to_meta(model, mode)
    with torch.device("meta"), mode:
        meta_model(x)
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue] - not in the stub
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from goodput.flops.errors import FlopCountError

# Modules that define wrappers: a user's model may also have a child called `module`.
_WRAPPERS = ("torch.nn.parallel.", "torch.distributed.", "deepspeed.", "accelerate.", "lightning.")
_WRAPPERS_NESTED_MAX = 16
_DEVICE_TYPES = ("cuda", "cpu", "xpu", "mps", "hpu")
_MOVES = ("cpu", "cuda", "xpu", "hpu")
# Functions and methods that autocast runs in lower precision ("CUDA Ops that can autocast to float16" in PyTorch's
# documentation), and the functions that hide such products from a TorchFunctionMode.
_AUTOCAST = frozenset(
    word
    for line in (
        "matmul __matmul__ __rmatmul__ mm bmm mv addmm addmv addbmm baddbmm addr chain_matmul multi_dot einsum",
        "linear conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d prelu",
        "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
        "scaled_dot_product_attention multi_head_attention_forward",
    )
    for word in line.split()
)


class MetaMode(TorchFunctionMode):
    """Replaces every tensor and device in a call by its meta counterpart; `types` are the types of the live devices."""

    def __init__(self, types: tuple[str, ...]):
        super().__init__()
        self.types = types
        self.memo: dict[int, Any] = {}
        self.kept: list = []  # keeps tensors alive, since `memo` is keyed by id

    def meta_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.memo:
            self.kept.append(tensor)
            self.memo[id(tensor)] = _meta_tensor(tensor)
        return self.memo[id(tensor)]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        args, kwargs = tree_map(self._to_meta, (args, kwargs or {}))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        if name in _MOVES:
            return args[0]
        if name == "to":
            args = tuple(torch.device("meta") if _names_device(arg) else arg for arg in args)
        if name in _AUTOCAST:
            args, kwargs = self._autocast((args, kwargs))
        return func(*args, **kwargs)

    def _to_meta(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if value.device.type == "meta" else self.meta_tensor(value)
        return torch.device("meta") if isinstance(value, torch.device) else value

    def _autocast(self, values: Any) -> Any:
        kind = next((kind for kind in self.types if torch.is_autocast_enabled(kind)), None)
        if kind is None:
            return values
        dtype = torch.get_autocast_dtype(kind)

        def cast(value: Any) -> Any:
            tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(dtype) if tensor and value.dtype != torch.float64 else value

        return tree_map(cast, values)


def copy_to_meta(plain: torch.nn.Module, mode: MetaMode) -> torch.nn.Module:
    """Copy an unwrapped module; empty instances come first, so that shared modules and cycles stay as they are.

    Raises FlopCountError for what cannot be copied.
    """
    modules = list(plain.modules())
    whole = [module for module in modules if unwrap(module) is module]
    for module in whole:
        mode.memo[id(module)] = object.__new__(type(module))
    for module in modules:
        if type(module).__name__ == "FullyShardedDataParallel":
            raise FlopCountError(
                "FullyShardedDataParallel keeps flat shards of parameters without their shapes: count the model before "
                "it is wrapped, or a copy built under torch.device('meta')"
            )
        mode.memo[id(module)] = mode.memo[id(unwrap(module))]
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            mode.meta_tensor(tensor)
    with mode:
        for module in whole:
            mode.memo[id(module)].__setstate__(_state(module, mode.memo))
    return mode.memo[id(plain)]


def unwrap(model: Any) -> Any:
    """The module inside torch.compile, DDP, DataParallel, FSDP or an engine's wrapper."""
    for _ in range(_WRAPPERS_NESTED_MAX):
        children = getattr(model, "__dict__", {}).get("_modules") or {}
        inner = children.get("_orig_mod")
        if inner is None and type(model).__module__.startswith(_WRAPPERS):
            inner = children.get("module")
        if inner is None:
            break
        model = inner
    return model


def device_types(model: torch.nn.Module, inputs: tuple, keywords: dict) -> tuple[str, ...]:
    """Device types whose autocast applies to the model; all known types if no tensor is on a real device."""
    tensors = (*model.parameters(), *model.buffers(), *tree_leaves((inputs, keywords)))
    types = {t.device.type for t in tensors if isinstance(t, torch.Tensor)} - {"meta"}
    return ("cuda",) if "cuda" in types else tuple(sorted(types)) or _DEVICE_TYPES


def _state(module: torch.nn.Module, memo: dict) -> dict:
    """The state of the copy, by the module's own `__getstate__` if it has one."""
    getter = getattr(type(module), "__getstate__", None)
    # The __getstate__ of a parametrised module only raises.
    custom = getter not in (None, getattr(object, "__getstate__", None)) and not is_parametrized(module)
    copied = {}
    for name, value in dict(getter(module) if getter and custom else module.__dict__).items():
        if name.endswith("_hooks") or "_hooks_" in name:
            # Hooks are closures over live objects: reducers, profilers, recorders.
            copied[name] = OrderedDict()
        elif name == "_compiled_call_impl":
            copied[name] = None
        elif "composable_api" in name:
            # State that `fully_shard` and `replicate` keep about the live module.
            continue
        elif type(value).__name__ == "ProcessGroup":
            copied[name] = value
        else:
            try:
                copied[name] = copy.deepcopy(value, memo)
            except FlopCountError:
                raise
            except Exception as error:
                where = f"{type(module).__name__}.{name}"
                raise FlopCountError(f"cannot copy {where}, a {type(value).__name__}: {error}") from error
    if isinstance(module, torch.nn.SyncBatchNorm):
        # In training it needs a GPU and its peers; it has no products in either mode.
        copied["training"] = False
    return copied


def _meta_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, UninitializedTensorMixin):
        raise FlopCountError("a lazy parameter has no shape yet: run the model once, then count")
    if tensor.layout != torch.strided:
        raise FlopCountError(f"cannot copy a tensor of layout {tensor.layout}")
    shape = tuple(tensor.shape)
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        copied = torch.empty_strided(shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    else:
        # A DTensor reports the shape of the whole tensor; its strides may be those of a shard.
        copied = torch.empty(shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copied, requires_grad=tensor.requires_grad)
    return copied.requires_grad_(tensor.requires_grad)


def _names_device(value: Any) -> bool:
    if isinstance(value, str):
        return value.split(":")[0] in _DEVICE_TYPES
    return isinstance(value, int) and not isinstance(value, bool)
