"""The copy of a model that is counted: same classes and shapes, on the meta device, without hooks and wrappers.

In: an unwrapped module. Out: its twin, and a mode under which every tensor that is met is replaced by its twin. So
a forward pass that reaches around the copy (a closure over the live model, a target tensor in a loss, an explicit
device) still runs on shapes alone.

Guarantee: a tensor is asked for its shape, strides, dtype and device, never for its data. Under autocast products
get their lower precision here, since autocast itself does not act on the meta device. Does not know what is counted.

    mode = OnMeta(device_types(model, (x,), {}))
    twin = twin_of(model, mode)
    with torch.device("meta"), mode:
        twin(x)
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from goodput.flops import FlopCountError, unwrap

_DEVICE_TYPES = ("cuda", "cpu", "xpu", "mps", "hpu")
_MOVES = ("cpu", "cuda", "xpu", "hpu")
# What autocast runs in the lower precision, by name, for functions and methods alike (the list "CUDA Ops that can
# autocast to float16" of PyTorch's documentation), and the functions that hide such products from a mode.
_LOWER = frozenset(
    word
    for line in (
        "matmul __matmul__ __rmatmul__ mm bmm mv addmm addmv addbmm baddbmm addr chain_matmul multi_dot einsum",
        "linear conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d prelu",
        "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
        "scaled_dot_product_attention multi_head_attention_forward",
    )
    for word in line.split()
)


class OnMeta(TorchFunctionMode):
    """Replaces every tensor and device in a call by what it is on the meta device; `types` are the live devices'."""

    def __init__(self, types: tuple[str, ...]):
        super().__init__()
        self.types = types
        self.memo: dict[int, Any] = {}
        self.kept: list = []  # a twin is found by the tensor's id, which nothing else may get meanwhile

    def twin_of(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.memo:
            self.kept.append(tensor)
            self.memo[id(tensor)] = _on_meta(tensor)
        return self.memo[id(tensor)]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        args, kwargs = tree_map(self._there, (args, kwargs or {}))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        if name in _MOVES:
            return args[0]
        if name == "to":
            args = tuple(torch.device("meta") if _names_device(arg) else arg for arg in args)
        if name in _LOWER:
            args, kwargs = self._lowered((args, kwargs))
        return func(*args, **kwargs)

    def _there(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if value.device.type == "meta" else self.twin_of(value)
        return torch.device("meta") if isinstance(value, torch.device) else value

    def _lowered(self, values: Any) -> Any:
        kind = next((kind for kind in self.types if torch.is_autocast_enabled(kind)), None)
        if kind is None:
            return values
        dtype = torch.get_autocast_dtype(kind)
        return tree_map(lambda value: value.to(dtype) if _is_castable(value) else value, values)


def twin_of(plain: torch.nn.Module, mode: OnMeta) -> torch.nn.Module:
    """The copy on the meta device. Shells come first, so that what is shared, or a cycle, stays so.

    Raises FlopCountError for what cannot be copied.
    """
    modules = list(plain.modules())
    whole = [module for module in modules if unwrap(module) is module]
    for module in whole:
        mode.memo[id(module)] = object.__new__(type(module))
    for module in modules:
        if type(module).__name__ == "FullyShardedDataParallel":
            raise FlopCountError(
                "FullyShardedDataParallel holds flat pieces of the parameters and not their shapes: count the model "
                "before it is wrapped, or one built under torch.device('meta')"
            )
        mode.memo[id(module)] = mode.memo[id(unwrap(module))]
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            mode.twin_of(tensor)
    with mode:
        for module in whole:
            mode.memo[id(module)].__setstate__(_state(module, mode.memo))
    return mode.memo[id(plain)]


def device_types(model: torch.nn.Module, inputs: tuple, keywords: dict) -> tuple[str, ...]:
    """Device types whose autocast concerns the model; all where nothing has a device of its own."""
    tensors = (*model.parameters(), *model.buffers(), *tree_leaves((inputs, keywords)))
    types = {t.device.type for t in tensors if isinstance(t, torch.Tensor)} - {"meta"}
    return ("cuda",) if "cuda" in types else tuple(sorted(types)) or _DEVICE_TYPES


def _state(module: torch.nn.Module, memo: dict) -> dict:
    """What the copy starts from, by the module's own rules for copies where it has some."""
    getter = getattr(type(module), "__getstate__", None)
    # A parametrised module has one that only refuses.
    custom = getter not in (None, getattr(object, "__getstate__", None)) and not is_parametrized(module)
    copied = {}
    for name, value in dict(getter(module) if custom else module.__dict__).items():
        if name.endswith("_hooks") or "_hooks_" in name:
            # Hooks are closures over live things: reducers, profilers, recorders.
            copied[name] = OrderedDict()
        elif name == "_compiled_call_impl":
            copied[name] = None
        elif "composable_api" in name:
            # What `fully_shard` and `replicate` remember of the live module.
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
        # In training it wants a GPU and its peers; it has no products either way.
        copied["training"] = False
    return copied


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, UninitializedTensorMixin):
        raise FlopCountError("a lazy parameter has no shape yet: run the model once, then count")
    if tensor.layout != torch.strided:
        raise FlopCountError(f"cannot copy a tensor of layout {tensor.layout}")
    shape = tuple(tensor.shape)
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        twin = torch.empty_strided(shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    else:
        # A DTensor tells the shape of the whole tensor; its strides may be those of a piece.
        twin = torch.empty(shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin.requires_grad_(tensor.requires_grad)


def _names_device(value: Any) -> bool:
    if isinstance(value, str):
        return value.split(":")[0] in _DEVICE_TYPES
    return isinstance(value, int) and not isinstance(value, bool)


def _is_castable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
