"""A backward pass without PyTorch's autograd engine, which refuses to run in a process that was forked beside a GPU.

The functions of the graph are called in topological order, as the engine does; streams, hooks of tensors and several
threads are left out. Leaves accumulate their gradients.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

_numbers = itertools.count(1 << 60)  # of backward passes; the engine's own begin at 0


def backward(roots: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
    """`torch.autograd.backward(roots, gradients)`."""
    received: dict[Any, dict[int, torch.Tensor]] = {}
    for root, gradient in zip(roots, gradients, strict=True):
        _receive(received, _node_of(root), root.output_nr, gradient)
    waiting = _edges_into(list(received))
    ready = [node for node in received if not waiting[node]]
    with torch.no_grad(), _instead_of_the_engine():
        while ready:
            node = ready.pop()
            results = _call(node, received.pop(node, {}))
            for (following, index), result in zip(node.next_functions, results, strict=True):
                if following is None:
                    continue
                if result is not None:
                    _receive(received, following, index, result)
                waiting[following] -= 1
                if not waiting[following]:
                    ready.append(following)


@contextlib.contextmanager
def _instead_of_the_engine():
    """Let activation checkpointing run its own backward passes here, and recompute once in each."""
    before, number = (torch.autograd.backward, torch._C._current_graph_task_id), next(_numbers)

    def nested(tensors, grad_tensors, **_options) -> None:
        backward(list(tensors), list(grad_tensors))

    torch.autograd.backward, torch._C._current_graph_task_id = nested, lambda: number
    try:
        yield
    finally:
        torch.autograd.backward, torch._C._current_graph_task_id = before


def _node_of(root: torch.Tensor) -> Any:
    """The function whose output the tensor is; of a leaf, the one that accumulates its gradient."""
    return root.grad_fn if root.grad_fn is not None else torch.autograd.graph.get_gradient_edge(root).node


def _edges_into(roots: list) -> dict[Any, int]:
    """The number of edges into every function that is reached from these."""
    number, todo = dict.fromkeys(roots, 0), list(roots)
    while todo:
        for following, _ in todo.pop().next_functions:
            if following is None:
                continue
            if following not in number:
                number[following] = 0
                todo.append(following)
            number[following] += 1
    return number


def _receive(received: dict, node: Any, index: int, gradient: torch.Tensor) -> None:
    """Add to the gradient of an output of the node, in the shape and dtype of that output."""
    output = node._input_metadata[index]
    if gradient.shape != output.shape:
        gradient = gradient.sum_to_size(output.shape)
    if gradient.dtype != output.dtype:
        gradient = gradient.to(output.dtype)
    slots = received.setdefault(node, {})
    slots[index] = gradient if index not in slots else slots[index] + gradient


def _call(node: Any, slots: dict[int, torch.Tensor]) -> list:
    """The gradients of the node's inputs, one for each of its edges."""
    edges = node.next_functions
    if not slots:
        return [None] * len(edges)
    outputs = node._input_metadata
    if not isinstance(node, BackwardCFunction):
        return _as_list(node(*(slots.get(index) for index in range(len(outputs)))))[: len(edges)] or [
            None
        ] * len(edges)
    zeros = [torch.zeros(o.shape, dtype=o.dtype, device=o.device) for o in outputs]
    results = _as_list(node.apply(*(slots.get(index, zero) for index, zero in enumerate(zeros))))
    if len(results) == len(edges):
        return results
    # Arguments that are no tensors have a result and no edge.
    wanted = iter([result for result, needed in zip(results, node.needs_input_grad, strict=False) if needed])
    return [None if following is None else next(wanted, None) for following, _ in edges]


def _as_list(results: Any) -> list:
    return list(results) if isinstance(results, tuple) else [results]
