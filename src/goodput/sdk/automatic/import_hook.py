"""Calls functions after a module has been imported, without importing it.

A function for a submodule is called when its top-level package is completely imported, since it may use all of it. The
import's own loader and errors do not change.

    hook = ImportHook(); hook.on_import("torch.optim", patch_optim); hook.install(); ...; hook.remove()
"""

from __future__ import annotations

import sys

from goodput.user_exceptions import drop_own_frames, reraise_from_handler


class ImportHook:
    """A finder on sys.meta_path that delegates to the other finders and wraps `exec_module` of the loader they return."""

    def __init__(self):
        self._waiting: dict[str, list] = {}
        self._searching: set[str] = set()

    def on_import(self, name: str, function) -> None:
        """Call `function(module)` when the module of this name has been imported; at once if it has been."""
        if is_imported(name):
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
        """As importlib.abc.MetaPathFinder."""
        if name not in self._waiting or name in self._searching:
            return None
        self._searching.add(name)
        try:
            for finder in list(sys.meta_path):
                spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
                if spec is not None:
                    if spec.loader is not None:
                        self._wrap(spec.loader, name)
                    return spec
            return None
        finally:
            self._searching.discard(name)

    def _wrap(self, loader, name: str) -> None:
        """Call the waiting functions after this loader has executed the module."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return  # A legacy loader with load_module: unsupported, its modules stay unpatched.

        def exec_module(module):
            try:
                del loader.exec_module
            except AttributeError:
                pass
            try:
                execute(module)
            except BaseException as error:
                drop_own_frames(error)
                raise
            self._imported(name)

        try:
            loader.exec_module = exec_module
        except Exception as error:
            # Else a loader without attributes, as that of frozen modules: they are not patched either.
            reraise_from_handler(error)

    def _imported(self, name: str) -> None:
        package = name.partition(".")[0]
        done = [name] if name != package else [n for n in self._waiting if n.partition(".")[0] == package]
        for each in done:
            # `name` itself is still marked as initializing: this call is the end of its import.
            if (each == name or is_imported(each)) and (name == package or is_imported(package)):
                module = sys.modules.get(each)
                for function in self._waiting.pop(each, []) if module is not None else ():
                    function(module)
        if not self._waiting:
            self.remove()


def is_imported(name: str) -> bool:
    """Whether a module's import has finished, according to its spec."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)
