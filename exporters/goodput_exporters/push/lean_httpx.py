"""httpx without its command line, which it imports wherever rich and click are installed: 4 MiB that no agent needs.

In: nothing. Out: `httpx`, as `import httpx` would give it. Afterwards nothing is hidden from other importers.
"""

import sys

_MAIN = "httpx._main"
_is_hidden = sys.modules.setdefault(_MAIN, None) is None
try:
    import httpx
finally:
    if _is_hidden:
        del sys.modules[_MAIN]

__all__ = ["httpx"]
