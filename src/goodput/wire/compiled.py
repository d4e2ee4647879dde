"""What is compiled of this package (_steps.c, _reports.c); `steps` is None without Python's headers, where the extension was
built from another version of its source, or where GOODPUT_PURE is set.

Each caller has the same in Python.
"""

from __future__ import annotations

import os

# That of the source beside this file.
REVISION = 5

try:
    from goodput.wire import _steps
except ImportError:
    steps = None
else:
    is_same = getattr(_steps, "REVISION", 0) == REVISION
    steps = _steps if is_same and os.environ.get("GOODPUT_PURE", "") in ("", "0") else None
