"""Imports goodput.auto in every Python that `goodput run` starts, then runs the sitecustomize that this file hides.

`goodput run` puts this folder at the front of PYTHONPATH and sets `GOODPUT_AUTO`; the folder is taken off `sys.path`
again. A Python in which goodput is not installed uses the package that this file belongs to.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _load() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    if os.environ.get("GOODPUT_AUTO", "") in ("", "0"):
        return
    try:
        import goodput.auto
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "goodput":
            raise
        ours = os.path.dirname(os.path.dirname(here))
        sys.path.append(ours)
        try:
            import goodput.auto  # noqa: F401
        finally:
            sys.path.remove(ours)


def _load_hidden() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _load()
except Exception as error:
    sys.stderr.write(f"goodput: not measured: {type(error).__name__}: {error}\n")
_load_hidden()
