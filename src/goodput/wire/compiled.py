"""What is compiled of this package (_steps.c, _reports.c); `steps` is None without Python's headers, or where the extension
was built from another version of its source.

Each caller has the same in Python.
"""

from __future__ import annotations

# That of the source beside this file.
REVISION = 6

try:
    from goodput.wire import _steps
except ImportError:
    steps = None
else:
    steps = _steps if getattr(_steps, "REVISION", 0) == REVISION else None
