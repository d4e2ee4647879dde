"""A character language model in NumPy: embedding, tanh layers, softmax cross entropy, and Adam.

Parameters and gradient are one contiguous vector each, and the layers are views into it, so an all-reduce packs
nothing. At the default sizes the vector has 0.67 MB, and forward, backward and Adam take 8 to 10 ms on a core of 115
GFLOP/s.

    model = Model(Sizes(hidden=(256, 256)))
    adam = Adam(model.parameters.size)
    loss = model.forward(tokens, targets)
    adam.update(model.parameters, model.backward())
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model and its batch. With the defaults four ranks on two cores take 40 steps a second."""

    vocabulary: int = 128  # distinct token ids
    context: int = 16  # previous characters that the model sees
    embedding: int = 16  # numbers per character
    hidden: tuple[int, ...] = (256, 256)  # width of each tanh layer
    batch: int = 768  # rows per rank and step
    seed: int = 0


class Model:
    """The network, with `parameters` (size,) that Adam updates and `gradient` (size,) that `backward` fills.

    `message` (size + extras,) is the gradient followed by `extras`, numbers of the caller's for the same all-reduce.
    float64 is for the comparison with finite differences.
    """

    def __init__(self, sizes: Sizes, extras: int = 0, dtype: type[np.floating] = np.float32) -> None:
        self.sizes = sizes
        self.layers = list(pairwise([sizes.context * sizes.embedding, *sizes.hidden, sizes.vocabulary]))
        size = sizes.vocabulary * sizes.embedding
        size += sum(inputs * outputs + outputs for inputs, outputs in self.layers)
        self.parameters = np.zeros(size, dtype)
        self.message = np.zeros(size + extras, dtype)
        self.gradient, self.extras = self.message[:size], self.message[size:]
        self._table, self._weights, self._biases = self._views(self.parameters)
        self._table_gradient, self._weight_gradients, self._bias_gradients = self._views(self.gradient)
        self._cache: tuple[np.ndarray, np.ndarray, list[np.ndarray], np.ndarray] | None = None
        random = np.random.default_rng(sizes.seed)
        self._table[:] = random.standard_normal(self._table.shape)
        for weight in self._weights:
            weight[:] = random.standard_normal(weight.shape) / np.sqrt(weight.shape[0])
        # Small logits make the first guess nearly uniform, so that the loss starts at ln(vocabulary).
        self._weights[-1] *= 0.1

    def _views(self, flat: np.ndarray) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """The embedding table (vocabulary, embedding), weights (inputs, outputs) and biases (outputs,)."""
        shape = self.sizes.vocabulary, self.sizes.embedding
        end = shape[0] * shape[1]
        table, weights, biases = flat[:end].reshape(shape), [], []
        for inputs, outputs in self.layers:
            start, end = end, end + inputs * outputs
            weights.append(flat[start:end].reshape(inputs, outputs))
            start, end = end, end + outputs
            biases.append(flat[start:end])
        return table, weights, biases

    def forward(self, tokens: np.ndarray, targets: np.ndarray) -> float:
        """Mean cross entropy, in nats per character, of `tokens` (batch, context) on `targets` (batch,)."""
        tokens, targets = np.asarray(tokens, np.intp), np.asarray(targets, np.intp)
        if tokens.ndim != 2 or tokens.shape[1] != self.sizes.context or targets.shape != tokens.shape[:1]:
            shapes = f"{tokens.shape} and {targets.shape}"
            raise ValueError(f"expected (batch, {self.sizes.context}) and (batch,), got {shapes}")
        values = [self._table[tokens].reshape(len(tokens), -1)]  # The input of each layer.
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            value = values[-1] @ weight
            value += bias
            values.append(np.tanh(value, out=value))
        logits = values[-1] @ self._weights[-1]
        logits += self._biases[-1]
        logits -= logits.max(axis=1, keepdims=True)  # exp cannot overflow, and the softmax is unchanged.
        picked = logits[np.arange(len(targets)), targets]
        probabilities = np.exp(logits, out=logits)
        totals = probabilities.sum(axis=1, keepdims=True)
        probabilities /= totals
        self._cache = tokens, targets, values, probabilities
        return float(np.mean(np.log(totals[:, 0]) - picked))

    def backward(self) -> np.ndarray:
        """The gradient of the last `forward`'s loss: `self.gradient` (size,). Raises RuntimeError without a `forward`."""
        if self._cache is None:
            raise RuntimeError("backward needs a forward pass first")
        tokens, targets, values, delta = self._cache
        self._cache = None
        delta[np.arange(len(targets)), targets] -= 1
        delta /= len(targets)
        for layer in reversed(range(len(self.layers))):
            np.matmul(values[layer].T, delta, out=self._weight_gradients[layer])
            np.sum(delta, axis=0, out=self._bias_gradients[layer])
            delta = delta @ self._weights[layer].T
            if layer:  # Layer 0 reads the embedding, the others a tanh.
                slope = np.square(values[layer], out=values[layer])
                np.subtract(1, slope, out=slope)
                delta *= slope
        # bincount adds up all rows of a token in a fixed order; np.add.at takes four times as long.
        places = tokens[:, :, None] * self.sizes.embedding + np.arange(self.sizes.embedding)
        sums = np.bincount(places.ravel(), weights=delta.ravel(), minlength=self._table.size)
        self._table_gradient[:] = sums.reshape(self._table.shape)
        return self.gradient

    def flops_per_step(self) -> int:
        """Model FLOPs of one rank's step: 6 · batch · weights, of the matrix products alone.

        Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section 2.1: 2 forward, 4 backward.
        """
        return 6 * self.sizes.batch * sum(inputs * outputs for inputs, outputs in self.layers)


class Adam:
    """Kingma and Ba (2015), algorithm 1. `first` and `second` (size,) are the moments of the gradient."""

    def __init__(
        self,
        size: int,
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        *,
        dtype: type[np.floating] = np.float32,
    ) -> None:
        self.learning_rate, self.beta1, self.beta2, self.epsilon = learning_rate, beta1, beta2, epsilon
        self.first, self.second = np.zeros(size, dtype), np.zeros(size, dtype)
        self.updates = 0
        self._scratch, self._change = np.empty(size, dtype), np.empty(size, dtype)

    def update(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """Update `parameters` (size,) in place; `gradient` (size,) is not changed."""
        self.updates += 1
        scratch, change = self._scratch, self._change
        self.first *= self.beta1
        self.first += np.multiply(gradient, 1 - self.beta1, out=scratch)
        np.square(gradient, out=scratch)
        scratch *= 1 - self.beta2
        self.second *= self.beta2
        self.second += scratch
        np.sqrt(self.second, out=scratch)
        scratch /= np.sqrt(1 - self.beta2**self.updates)
        scratch += self.epsilon
        np.divide(self.first, scratch, out=change)
        change *= self.learning_rate / (1 - self.beta1**self.updates)
        parameters -= change

    def state(self) -> dict[str, np.ndarray]:
        """`first`, `second` and `updates`, not copied."""
        return {"first": self.first, "second": self.second, "updates": np.array(self.updates, np.int64)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from `state`; other keys are ignored. Raises ValueError when the sizes differ."""
        if state["first"].shape != self.first.shape or state["second"].shape != self.second.shape:
            raise ValueError(f"state of {state['first'].shape} does not fit {self.first.shape}")
        self.first[:], self.second[:] = state["first"], state["second"]
        self.updates = int(state["updates"])
