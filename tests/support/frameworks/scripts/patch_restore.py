"""What goodput.auto replaces in PyTorch and puts back; run by test_patch_restore.py, which says how in `ORDER`.

In: the file to write to; `ORDER`: auto_first, torch_first, between or broken. Out: JSON: what is replaced while it is
installed, what is not as before after its removal, and steps that were measured.
"""

import importlib
import json
import os
import sys

ORDER = os.environ["ORDER"]
LAZY = ("torch._dynamo", "torch.distributed.checkpoint", "safetensors.torch")
if ORDER in ("auto_first", "disabled"):
    import goodput.auto
elif ORDER == "between":
    import torch.nn

    import goodput.auto

import torch  # noqa: E402

if ORDER == "broken":
    del torch.amp.GradScaler.step

import goodput.auto  # noqa: E402
from goodput.sdk.automatic import patch  # noqa: E402

seen = []
replace = patch.Patches.replace


def watched(self, owner, name, new):
    seen.append((owner, name, vars(owner).get(name, "inherited")))
    return replace(self, owner, name, new)


def train() -> int:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = goodput._session.recorder.steps
    for _ in range(4):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    return max(goodput._session.recorder.steps, 0) - before


def left_over() -> list[str]:
    """Attributes that are not what they were before they were replaced."""
    return [f"{o.__name__}.{name}" for o, name, raw in seen if vars(o).get(name, "inherited") is not raw]


def hooks() -> int:
    module = sys.modules["torch.optim.optimizer"]
    handler = sys.modules["torch._dynamo"].callback.callback_handler
    return sum(
        map(
            len,
            (
                module._global_optimizer_pre_hooks,
                module._global_optimizer_post_hooks,
                handler.start_callbacks,
                handler.end_callbacks,
            ),
        )
    )


steps = [train()]
goodput.auto.remove()
patch.Patches.replace = watched
for name in LAZY if ORDER != "auto_first" else ():
    importlib.import_module(name)
goodput.auto.install()
for name in LAZY:
    importlib.import_module(name)
steps.append(train())
report = {
    "replaced": sorted({f"{owner.__name__}.{name}" for owner, name, _ in seen if hasattr(owner, "__name__")})
}
report["changed"] = len([1 for o, name, raw in seen if vars(o).get(name, "inherited") is not raw])
goodput.auto.remove()
seen = [each for each in seen if hasattr(each[0], "__name__")]
report |= {"left": left_over(), "finders": sum(type(f).__name__ == "ImportHook" for f in sys.meta_path)}
report |= {"hooks": hooks(), "steps": [*steps, train()], "call": torch.nn.Module.__call__.__name__}
with open(sys.argv[1], "w") as file:
    json.dump(report, file)
