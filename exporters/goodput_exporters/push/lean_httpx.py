"""Imports httpx without its command line, which would import click, rich and pygments, and without HTTP/2.

5 MiB of the agent's 64 where those are installed, and 1 MiB where h2 is.
"""

import sys

# httpx and httpcore handle an ImportError of these modules, which None in sys.modules raises.
_HIDDEN = [name for name in ("httpx._main", "h2") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_HIDDEN))  # pyright: ignore[reportArgumentType, reportCallIssue]
try:
    import httpcore  # noqa: F401  # httpx would import it with the first client.
    import httpx
finally:
    for _name in _HIDDEN:
        del sys.modules[_name]

__all__ = ["httpx"]
