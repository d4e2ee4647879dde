"""Optimizers: registers torch's global hooks around `step`, which is a phase and ends a training step.

`zero_grad` and the clipping of gradients are part of the phase. GradScaler.step is wrapped too, since a step that it
skips is a training step.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident

from goodput.sdk.automatic.hooks import AFTER_STEP, BEFORE_STEP, ZERO_GRAD, hook, install_hook
from goodput.sdk.recorder.training_calls import BACKWARD
from goodput.user_exceptions import drop_own_frames, reraise_from_handler

MODULE = "torch"
RELIES_ON = """torch/optim/optimizer.py: register_optimizer_step_pre_hook and register_optimizer_step_post_hook, called
by the function that profile_hook_step returns as hook(optimizer, args, kwargs); post hooks are not called if step
raises.
torch/utils/hooks.py: the handle of one has hooks_dict_ref() and id. Adam and its variants keep the number of steps in
state[parameter]["step"]. torch/amp/grad_scaler.py: GradScaler.step calls
optimizer.step unless gradients are not finite, and unscale_ if the loop has not. torch/nn/utils/__init__.py imports
clip_grad_norm_ and clip_grad_value_ of clip_grad.py."""
FRAMES_MAX = 64  # between the step of an optimizer and the step of one that it wraps


def apply(torch, auto) -> None:
    # torch.optim deletes the names of its modules after importing them.
    module, is_compiling = sys.modules["torch.optim.optimizer"], torch.compiler.is_dynamo_compiling
    recorder, training = auto.recorder, auto.training

    def is_fetching() -> bool:
        """Whether an optimizer is part of the fetch of a batch."""
        return training.fetches.fetching and recorder.thread == get_ident()

    def before_any(optimizer, args, kwargs) -> None:
        if not (training.preparing or is_fetching()) and auto.may_train(optimizer):
            auto.compiled_optimizers.discard()
            if not recorder.steps and training.anchor() is None:
                auto.resume_after(steps_known(optimizer, torch))
            auto.optimizer_begins(optimizer)

    def after_any(optimizer, args, kwargs) -> None:
        if not (training.preparing or is_fetching()):
            auto.optimizer_ends(optimizer)

    # Every optimizer step runs in a function with this code.
    code = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
    auto.is_nested_step = functools.partial(is_inside, code)
    phase, word = auto.optimizer, auto.optimizer_word
    begin = hook(BEFORE_STEP, training, phase, before_any, before_any, gap=word)
    end = hook(AFTER_STEP, training, phase, after_any, after_any)

    def before(optimizer, args, kwargs) -> None:
        if not is_compiling():
            begin(optimizer, args, kwargs)

    def after(optimizer, args, kwargs) -> None:
        if not is_compiling():
            end(optimizer, args, kwargs)

    for register, fast, traceable in (
        (module.register_optimizer_step_pre_hook, begin, before),
        (module.register_optimizer_step_post_hook, end, after),
    ):
        handle = register(fast)
        auto.patches.undo(handle.remove)
        auto.before_compiler.append(functools.partial(_exchange, handle, traceable))

    made = torch.optim.Optimizer.__init__

    @auto.patches.wrap("__init__", torch.optim.Optimizer)
    def __init__(self, *args, **kwargs):
        try:
            made(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        auto.compiled_optimizers.add(self)
        auto.by_hand = False
        auto.optimizer_created()

    _watch_zero_grad(torch, auto)
    _watch_scaler(torch, auto)
    _watch_gradients(torch, auto)


def _exchange(handle, function) -> None:
    """Replace the function of a registered hook, if it is still registered."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None and handle.id in hooks:
        hooks[handle.id] = function


def is_inside(code) -> bool:
    """Whether two functions of this code are on the stack, one called by the other."""
    frame, found = sys._getframe(1), 0
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        found += frame.f_code is code
        if found > 1:
            return True
        frame = frame.f_back
    return False


def _watch_zero_grad(torch, auto) -> None:
    zero, phase = torch.optim.Optimizer.zero_grad, auto.optimizer
    recorder, training = auto.recorder, auto.training

    def any_zero(self, *args, **kwargs):
        try:
            if training.evaluating or recorder.thread != get_ident() or training.in_other_work:
                return zero(self, *args, **kwargs)
            auto.claim_before_zero_grad()
            # A compiled step calls no hooks.
            is_first = not (training.optimizer_steps or training.inside or training.optimizer_depth)
            may_end_step = is_first and training.after == BACKWARD
            result = phase.run(zero, self, *args, **kwargs)
            if may_end_step:
                auto.poll_steps()
            return result
        except BaseException as error:
            drop_own_frames(error)
            raise

    owner, word = torch.optim.Optimizer, auto.optimizer_word
    install_hook(auto, torch, owner, "zero_grad", ZERO_GRAD, phase, any_zero, word)


def _watch_scaler(torch, auto) -> None:
    """Wrap GradScaler.step: a step skipped for infinite gradients is a training step."""
    scaled = torch.amp.GradScaler.step

    @auto.patches.wrap("step", torch.amp.GradScaler)
    def step(self, optimizer, *args, **kwargs):
        before = auto.training.optimizer_steps
        try:
            result = scaled(self, optimizer, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        is_training = auto.recorder.thread == get_ident() and not auto.training.fetches.fetching
        if auto.training.optimizer_steps == before and is_training:
            auto.skipped_steps += 1
            auto.optimizer_stepped(optimizer)
        return result


def _watch_gradients(torch, auto) -> None:
    """Wrap what changes gradients between the backward pass and the optimizer's step: it is part of the phase."""
    scaler, clip, recorder, phase = (
        torch.amp.GradScaler,
        torch.nn.utils.clip_grad,
        auto.recorder,
        auto.optimizer,
    )
    is_compiling = torch.compiler.is_dynamo_compiling

    def timed(original):
        @functools.wraps(original)
        def call(*args, **kwargs):
            if is_compiling():
                return original(*args, **kwargs)
            try:
                if recorder.thread != get_ident() or auto.training.after != BACKWARD:
                    return original(*args, **kwargs)
                auto.training.gaps.claim(auto.optimizer_word)
                return phase.run(original, *args, **kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise

        return call

    auto.patches.replace(scaler, "unscale_", timed(scaler.unscale_))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        call = timed(getattr(clip, name))
        for module in (clip, torch.nn.utils):
            auto.patches.replace(module, name, call)


def steps_known(optimizer, torch):
    """Index of the last step of a restored optimizer; None if its state has no usable step count on the host."""
    try:
        state = next(iter(optimizer.state.values()), None)
        done = state.get("step") if isinstance(state, dict) else None
        if done is not None and isinstance(done, torch.Tensor):
            # Reading a number on a device would wait for the device.
            done = int(done.item()) if done.is_cpu and done.numel() == 1 else None
        return done - 1 if isinstance(done, int) and done > 0 else None
    except Exception as error:
        reraise_from_handler(error)
        return None
