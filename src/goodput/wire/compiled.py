"""What is compiled of this package (_steps.c, _reports.c); `steps` is None where no compiler was, or where GOODPUT_PURE is set.

Each caller has the same in Python.
"""

from __future__ import annotations

import os

try:
    from goodput.wire import _steps
except ImportError:
    steps = None
else:
    steps = None if os.environ.get("GOODPUT_PURE") else _steps
