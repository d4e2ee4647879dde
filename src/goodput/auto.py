"""`import goodput.auto`: measure this process's PyTorch training without another line of code.

In: the import, before or after that of torch, at the top of a training script. Out: the calls of PyTorch that make
up a training loop are timed as phases and steps (goodput.sdk.automatic.frameworks has one file for each). Nothing is imported
that the script does not import; nothing is measured until the script trains. `remove()` puts everything back.

    import goodput.auto
"""

from __future__ import annotations

import goodput
from goodput.sdk.automatic.frameworks import apply_all
from goodput.sdk.automatic.import_hook import Watch
from goodput.sdk.automatic.step_detection import Automatic
from goodput.sdk.recorder.recorder import State

_watch = Watch()
_auto: Automatic | None = None


def install() -> None:
    """Measure from now on; does nothing where that is so already or goodput is disabled."""
    global _auto
    if _auto is not None or goodput._session.recorder.state == State.DISABLED:
        return
    _auto = goodput._session.automatic = Automatic(goodput._session, goodput.phase)
    apply_all(_auto, _watch)
    _watch.install()


def remove() -> None:
    """Put back every attribute that was replaced. What was measured so far stays."""
    global _auto
    _watch.remove()
    if _auto is not None:
        _auto.remove()
        _auto = goodput._session.automatic = None


install()
