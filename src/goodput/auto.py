"""Measure this process's PyTorch training without another line of code.

    import goodput.auto

The import may come before or after that of torch. The calls of PyTorch that make up a training loop are then timed as
phases and steps (goodput.sdk.automatic.frameworks has one file for each library). Nothing is imported that the script
does not import, and nothing is measured until the script trains. `goodput.auto.remove()` undoes it.
"""

from __future__ import annotations

import goodput
from goodput.sdk.automatic.frameworks import apply_all
from goodput.sdk.automatic.import_hook import ImportHook
from goodput.sdk.automatic.step_detection import Automatic
from goodput.sdk.automatic.trainer_progress import TrainerProgress, progress_of
from goodput.sdk.recorder.recorder import State

_import_hook = ImportHook()
_auto: Automatic | None = None


def install() -> None:
    """Patch the frameworks, those imported later too. Does nothing if that is done or goodput is disabled."""
    global _auto
    if _auto is not None or goodput._session.recorder.state == State.DISABLED:
        return
    _auto = goodput._session.automatic = Automatic(goodput._session, goodput.phase)
    apply_all(_auto, _import_hook)
    _import_hook.install()


def progress() -> TrainerProgress:
    """What the callbacks of trainers report to, with the patches installed."""
    install()
    return progress_of(goodput._session.automatic)


def remove() -> None:
    """Restore every patched attribute. What was measured so far is kept."""
    global _auto
    _import_hook.remove()
    if _auto is not None:
        _auto.remove()
        _auto = goodput._session.automatic = None


install()
