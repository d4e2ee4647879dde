"""Do something once a module has been imported, now or later, without importing it.

In: module names and functions. Out: each function is called with its module, right after the import that brought
it. A module inside a package waits until the package itself is whole, since it may use all of it. The import sees
nothing of this: neither its loader nor its errors change.

    watch = Watch(); watch.when("torch.optim", patch_optim); watch.install(); ...; watch.remove()
"""

from __future__ import annotations

import sys


class Watch:
    """A finder that finds nothing itself and looks over the shoulder of those that do."""

    def __init__(self):
        self._waiting: dict[str, list] = {}
        self._looking: set[str] = set()

    def when(self, name: str, function) -> None:
        """Call `function(module)` when the module of this name has been imported; at once if it has been."""
        if is_whole(name):
            function(sys.modules[name])
        else:
            self._waiting.setdefault(name, []).append(function)
            self._waiting.setdefault(name.partition(".")[0], [])

    def install(self) -> None:
        if self._waiting and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name, path=None, target=None):
        """As importlib.abc.MetaPathFinder: the spec that the next finders give, its loader looked after."""
        if name not in self._waiting or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = _found(self, name, path, target)
            if spec is not None and spec.loader is not None:
                self._follow(spec.loader, name)
            return spec
        finally:
            self._looking.discard(name)

    def _follow(self, loader, name: str) -> None:
        """Call what waits for the module after this loader has executed it."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return  # A loader of the old kind, by load_module: nothing waits for what it brings.

        def exec_module(module):
            try:
                del loader.exec_module
            except AttributeError:
                pass
            execute(module)
            self._imported(name)

        try:
            loader.exec_module = exec_module
        except Exception:
            pass  # A loader that takes no attributes (a frozen module): nothing waits for such a one.

    def _imported(self, name: str) -> None:
        package = name.partition(".")[0]
        done = [name] if name != package else [n for n in self._waiting if n.partition(".")[0] == package]
        for each in done:
            # The last act of a module's own import is this one, though it is still marked as at it.
            if (each == name or is_whole(each)) and (name == package or is_whole(package)):
                module = sys.modules.get(each)
                for function in self._waiting.pop(each, []) if module is not None else ():
                    function(module)
        if not self._waiting:
            self.remove()


def _found(watch: Watch, name: str, path, target):
    for finder in list(sys.meta_path):
        if finder is not watch and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def is_whole(name: str) -> bool:
    """Whether a module was imported to its end, as far as its spec says."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)
