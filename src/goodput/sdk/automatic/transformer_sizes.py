"""Sizes of a model of Hugging Face transformers and the FLOPs of a step, by goodput.account.mfu.flops.transformer.

Encoder-decoders, inputs other than tokens and quantised weights have no formula. Nothing is computed on the model.

    sizes_of(model).flops(tokens=8 * 1024, length=1024, recomputed=False).model
"""

from __future__ import annotations

import sys

from goodput.user_exceptions import reraise_from_handler


class Sizes:
    """`params` are those in matrix products, `counted_params` those that the Trainer counts."""

    def __init__(self, model):
        config, torch = model.config, sys.modules["torch"]
        own = config.get_text_config()
        self.layers, self.heads = int(own.num_hidden_layers), int(own.num_attention_heads)
        self.head_dim = int(getattr(own, "head_dim", None) or own.hidden_size // self.heads)
        self.counted_params = model.num_parameters(exclude_embeddings=True)
        self.windows = _windows(own, self.layers)
        tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
        head = model.get_output_embeddings()
        self.head_params = 0 if head is None else _elements(head.weight)
        if (
            head is not None
        ):  # Its weights are used in a matrix product, also where they are those of an embedding.
            tables.discard(id(head.weight))
        matrices = [(n, p) for n, p in model.named_parameters() if p.ndim >= 2 and id(p) not in tables]
        experts = sum(_elements(p) for n, p in matrices if ".experts." in n)
        active = _active_experts(own)
        self.params = sum(_elements(p) for _, p in matrices) - experts * (1 - active)
        self.frozen = sum(
            _elements(p) * (active if ".experts." in n else 1) for n, p in matrices if not p.requires_grad
        )
        self.shared_by = int(getattr(model, "tp_size", None) or 1)

    def flops(self, tokens: float, length: float, recomputed: bool):
        """FLOPs of a step with this number of tokens, in sequences of this length."""
        from goodput.account.mfu.flops import transformer

        context = sum(min(length, window) for window in self.windows) / len(self.windows)
        return transformer(
            params=self.params,
            tokens=tokens,
            layers=self.layers if context else 0,
            heads=self.heads if context else 0,
            head_dim=self.head_dim if context else 0,
            context=context,
            frozen_params=self.frozen,
            recompute="full" if recomputed else "none",
            recomputed_params=self.params - min(self.head_params, self.params),
            model_parallel_ranks=self.shared_by,
        )


def sizes_of(model) -> Sizes | None:
    """The sizes of a model, None if it has no formula."""
    config = getattr(model, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False):
        return None
    if getattr(model, "main_input_name", "") != "input_ids" or getattr(model, "is_quantized", False):
        return None
    try:
        return Sizes(model)
    except Exception as error:
        reraise_from_handler(error)
        return None


def _windows(config, layers: int) -> list[float]:
    """The attention window of each layer in tokens; 0 for a layer without attention."""
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    reach = {"full_attention": float("inf"), "sliding_attention": window, "chunked_attention": window}
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        slides = window and getattr(config, "use_sliding_window", True)
        kinds = ["sliding_attention" if slides else "full_attention"] * layers
    return [float(reach.get(kind) or 0) for kind in kinds]


def _active_experts(config) -> float:
    """Share of the experts that a token is routed to."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return chosen / experts if experts and chosen else 1.0


def _elements(parameter) -> int:
    """Elements of a parameter, also of one that DeepSpeed has partitioned."""
    return getattr(parameter, "ds_numel", None) or parameter.numel()
