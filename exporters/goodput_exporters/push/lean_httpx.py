"""Imports httpx without its command line, which would import click, rich and pygments: 5 MiB of the agent's 64."""

import sys

_MAIN = "httpx._main"
# httpx handles an ImportError of this module, which None in sys.modules raises.
_is_hidden = sys.modules.setdefault(_MAIN, None) is None  # pyright: ignore[reportArgumentType]
try:
    import httpx
finally:
    if _is_hidden:
        del sys.modules[_MAIN]

__all__ = ["httpx"]
