"""A callback for Hugging Face's Trainer that measures it, MFU included.

    trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[GoodputCallback()])

It switches goodput.auto on, and adds what only the Trainer knows: the step a training resumes from, the precision, the
batches per step and the model's FLOPs. It changes no result and raises nothing; an event costs about 1 us.

FLOPs come from the model's sizes and the tokens that the Trainer counts in `state.total_flos` (padding included, since
it is computed), as the mean over this training, declared at each log, save and at the end. They are unknown for
encoder-decoders, for inputs other than tokens and for quantised weights.
"""

from __future__ import annotations

from transformers import TrainerCallback

import goodput
from goodput import auto
from goodput.sdk.automatic.trainer_progress import DTYPES, callback, full_precision
from goodput.sdk.automatic.transformer_sizes import Sizes, sizes_of


class GoodputCallback(TrainerCallback):
    """Measures one Trainer."""

    def __init__(self):
        self._sizes: Sizes | None = None
        self._from = (0, 0.0)
        auto.install()

    session = property(lambda self: goodput._session)

    @callback
    def on_init_end(self, args, state, control, model=None, **kwargs):
        # Before FSDP cuts the parameters into pieces.
        self._sizes = sizes_of(model)

    @callback
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        auto.progress().begin(state.global_step, args.gradient_accumulation_steps, dtype_of(args, model))
        self._from = state.global_step, state.total_flos
        self._sizes = self._sizes or sizes_of(model)

    @callback
    def on_epoch_begin(self, args, state, control, **kwargs):
        auto.progress().epoch_begins()

    @callback
    def on_step_end(self, args, state, control, **kwargs):
        self.session.automatic.progress.steps_done(state.global_step)

    @callback
    def on_train_end(self, args, state, control, **kwargs):
        self._declare_flops(args, state)
        auto.progress().end()

    @callback
    def on_log(self, args, state, control, **kwargs):
        self._declare_flops(args, state)

    on_save = on_log

    def _declare_flops(self, args, state) -> None:
        steps, flops = state.global_step - self._from[0], state.total_flos - self._from[1]
        if self._sizes is None or steps <= 0 or flops <= 0:
            return
        # The Trainer counts 6 per token and parameter, over all ranks (Trainer.floating_point_ops).
        tokens = flops / 6 / self._sizes.counted_params / steps / max(args.world_size, 1)
        rows = args.per_device_train_batch_size * max(args.n_gpu, 1) * args.gradient_accumulation_steps
        found = self._sizes.flops(tokens, tokens / rows, is_recomputed(args))
        self.session.declare(flops_per_step=found.model, hardware_flops_per_step=found.hardware)


def dtype_of(args, model) -> str | None:
    """The dtype of matrix products, None if unknown."""
    if args.bf16 or args.fp16:
        return "bf16" if args.bf16 else "fp16"
    name = str(getattr(model, "dtype", "")).removeprefix("torch.")
    return full_precision() if name == "float32" else DTYPES.get(name)


def is_recomputed(args) -> bool:
    # `activation_checkpointing` since transformers 5.
    names = ("gradient_checkpointing", "activation_checkpointing")
    return any(getattr(args, name, False) for name in names)
