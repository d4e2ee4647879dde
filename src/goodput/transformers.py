"""`GoodputCallback` for Hugging Face's Trainer: goodput.auto, and what only the Trainer knows.

In: the events of transformers.TrainerCallback. Out: goodput.auto is switched on, and it is told from which step a
training goes on, the precision, how many batches make a step, and the model's FLOPs. The Trainer's results do not
change and nothing is raised into it; an event costs about 1 us. Checkpoints and evaluation are seen without it
(sdk/patches/trainer.py).

FLOPs are those of goodput.account.flops.transformer, from the model's own sizes and from the tokens that the Trainer
has counted in `state.total_flos` (padding included, for padding is computed): told at each log, save and at the end,
as the mean over this training. Unknown for encoder-decoders, for inputs that are no tokens and for quantised weights.

    trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[GoodputCallback()])
"""

from __future__ import annotations

import sys

from transformers import TrainerCallback

import goodput
from goodput import auto
from goodput.sdk.training import Training, full_precision, hook, training


class GoodputCallback(TrainerCallback):
    """Measures what a Trainer does. One for each Trainer."""

    def __init__(self):
        self._sizes: Sizes | None = None
        self._from = (0, 0.0)
        auto.install()

    @property
    def session(self):
        return goodput._session

    def _training(self) -> Training:
        auto.install()
        return training(self.session.automatic)

    @hook
    def on_init_end(self, args, state, control, model=None, **kwargs):
        # Before FSDP cuts the parameters into pieces.
        self._sizes = sizes_of(model)

    @hook
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self._training().begins(state.global_step)
        self._from = state.global_step, state.total_flos
        self._sizes = self._sizes or sizes_of(model)
        self.session.tell(microbatches=args.gradient_accumulation_steps)
        dtype = dtype_of(args, model)
        if dtype is not None:
            self.session.tell(dtype=dtype)

    @hook
    def on_epoch_begin(self, args, state, control, **kwargs):
        self._training().renews()

    @hook
    def on_step_end(self, args, state, control, **kwargs):
        self.session.automatic.training.stepped(state.global_step)

    @hook
    def on_train_end(self, args, state, control, **kwargs):
        self._tell_flops(args, state)
        self._training().ends()

    @hook
    def on_log(self, args, state, control, **kwargs):
        self._tell_flops(args, state)

    on_save = on_log

    def _tell_flops(self, args, state) -> None:
        steps, flops = state.global_step - self._from[0], state.total_flos - self._from[1]
        if self._sizes is None or steps <= 0 or flops <= 0:
            return
        # The Trainer counts 6 per token and parameter, over all ranks (Trainer.floating_point_ops).
        tokens = flops / 6 / self._sizes.counted_params / steps / max(args.world_size, 1)
        rows = args.per_device_train_batch_size * max(args.n_gpu, 1) * args.gradient_accumulation_steps
        found = self._sizes.flops(tokens, tokens / rows, is_recomputed(args))
        self.session.tell(flops_per_step=found.model, hardware_flops_per_step=found.hardware)


class Sizes:
    """A model's sizes: `params` in matrix products, `counted_params` those that the Trainer counts."""

    def __init__(self, model):
        config, torch = model.config, sys.modules["torch"]
        own = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.layers, self.heads = int(own.num_hidden_layers), int(own.num_attention_heads)
        self.head_dim = int(getattr(own, "head_dim", None) or own.hidden_size // self.heads)
        self.counted_params = model.num_parameters(exclude_embeddings=True)
        self.windows = _windows(own, self.layers)
        tables = {
            id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding) and m.weight is not None
        }
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        self.head_params = 0 if head is None else _numbers(head.weight)
        if head is not None:
            tables.discard(id(head.weight))
        matrices = [(n, p) for n, p in model.named_parameters() if p.ndim >= 2 and id(p) not in tables]
        experts = sum(_numbers(p) for n, p in matrices if ".experts." in n)
        active = _active_experts(own)
        self.params = sum(_numbers(p) for _, p in matrices) - experts * (1 - active)
        self.frozen = sum(
            _numbers(p) * (active if ".experts." in n else 1) for n, p in matrices if not p.requires_grad
        )
        self.shared_by = int(getattr(model, "tp_size", None) or 1)

    def flops(self, tokens: float, length: float, recomputed: bool):
        """FLOPs of a step with so many tokens, in sequences of this length."""
        from goodput.account.flops import transformer

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
    """The sizes of a model of tokens, None where they are not to be found."""
    config = getattr(model, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False):
        return None
    if getattr(model, "main_input_name", "") != "input_ids" or getattr(model, "is_quantized", False):
        return None
    try:
        return Sizes(model)
    except Exception:
        return None


def _windows(config, layers: int) -> list[float]:
    """How far each layer's attention reaches, in tokens; 0 for a layer without attention."""
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    reach = {"full_attention": float("inf"), "sliding_attention": window, "chunked_attention": window}
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        slides = window and getattr(config, "use_sliding_window", True)
        kinds = ["sliding_attention" if slides else "full_attention"] * layers
    return [float(reach.get(kind) or 0) for kind in kinds]


def _active_experts(config) -> float:
    """Share of the experts that a token meets."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return chosen / experts if experts and chosen else 1.0


def _numbers(parameter) -> int:
    """Numbers of a parameter, also of one that DeepSpeed has cut into pieces."""
    return getattr(parameter, "ds_numel", None) or parameter.numel()


def dtype_of(args, model) -> str | None:
    """What matrix products run in, None where it is not known."""
    if args.bf16 or args.fp16:
        return "bf16" if args.bf16 else "fp16"
    name = str(getattr(model, "dtype", "")).removeprefix("torch.")
    if name == "float32":
        return full_precision()
    return {"bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}.get(name)


def is_recomputed(args) -> bool:
    return bool(getattr(args, "gradient_checkpointing", False) or getattr(args, "activation_checkpointing", False))
