"""Lightning Fabric: wraps `Fabric.save` as one checkpoint, committed when it returns."""

from __future__ import annotations

from goodput.sdk.automatic.frameworks._checkpoint_calls import as_checkpoint, commit_file

MODULE, ALIAS = "lightning.fabric.fabric", "lightning_fabric.fabric"
RELIES_ON = """lightning/fabric/fabric.py: Fabric.save(path, state) has written when it returns. It serializes to
memory first and writes the file afterwards, so that torch.save alone does not show the whole time."""


def apply(module, auto) -> None:
    def state_of(fabric, path, state, *args, **kwargs):
        return state

    def path_of(fabric, path, *args, **kwargs):
        return path

    auto.patches.replace(
        module.Fabric, "save", as_checkpoint(auto, module.Fabric.save, state_of, commit_file(path_of))
    )
