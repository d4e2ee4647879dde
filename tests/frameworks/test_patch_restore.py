"""goodput.auto replaces the attributes of its patches, in every order of imports, and restores all of them."""

from __future__ import annotations

import inspect

import pytest
from support.frameworks import script_process

from goodput.sdk.automatic import frameworks

torch = pytest.importorskip("torch")
SCRIPT = "patch_restore.py"
REPLACED = {
    *("torch.autograd.backward", "torch.autograd.grad", "torch.save", "torch.load", "DataLoader.__iter__"),
    *("_BaseDataLoaderIter.__next__", "Optimizer.zero_grad", "Optimizer.__init__", "GradScaler.step"),
    *("Module.train", "Module.zero_grad", "Module._compiled_call_impl"),
    *("safetensors.torch.save_file", "safetensors.torch.load_file"),
}


# The order of imports concerns the import hook, which is the same with the compiled and the Python recorder.
@pytest.mark.parametrize(
    ("order", "implementation"),
    [
        ("auto_first", "compiled"),
        ("torch_first", "compiled"),
        ("between", "compiled"),
        ("torch_first", "python"),
    ],
)
def test_remove_restores_every_attribute(tmp_path, order, implementation):
    found, printed = script_process.run_implementation(
        SCRIPT, tmp_path, implementation, forked="torch" if order == "torch_first" else "", ORDER=order
    )
    assert printed == ""
    assert set(found["replaced"]) >= REPLACED, REPLACED - set(found["replaced"])
    assert found["changed"] > 0 and found["left"] == [] and found["finders"] == 0
    assert found["hooks"] == 0 and found["call"] == "_wrapped_call_impl"
    assert found["steps"] == [4, 4, 0]


def test_nothing_is_replaced_when_disabled(tmp_path):
    found, printed = script_process.run_implementation(
        SCRIPT, tmp_path, "compiled", ORDER="disabled", GOODPUT_DISABLE="1"
    )
    assert printed == "" and found["replaced"] == [] and found["steps"] == [0, 0, 0]
    assert not list(tmp_path.glob("pages/*"))


def test_missing_upstream_name_is_reported_once(tmp_path):
    found, printed = script_process.run_implementation(
        SCRIPT, tmp_path, "compiled", forked="torch", ORDER="broken"
    )
    lines = printed.splitlines()
    assert lines and len(lines) == len(set(lines))
    assert all(line.startswith("goodput: automatic: ") for line in lines)
    assert {line.split()[2] for line in lines} == {"optimizer"}
    assert "torch.save" in found["replaced"] and found["left"] == [] and found["steps"] == [4, 4, 0]


@pytest.mark.parametrize("patch", frameworks.found(), ids=lambda patch: patch.__name__.rpartition(".")[2])
def test_each_patch_states_what_it_relies_on(patch):
    assert patch.MODULE and ".py" in patch.RELIES_ON and patch.__doc__
    assert list(inspect.signature(patch.apply).parameters)[1] == "auto"


# ---- RELIES_ON against the installed version


def source(owner) -> str:
    return inspect.getsource(owner)


def test_upstream_modules():
    module = torch.nn.Module
    assert module.__call__ is module._wrapped_call_impl and module._compiled_call_impl is None
    assert "if self._compiled_call_impl is not None:" in source(module._wrapped_call_impl)
    one = torch.nn.Linear(1, 1)
    one.__dict__["_compiled_call_impl"] = lambda x: "ours"
    assert one(0) == "ours" and "_compiled_call_impl" not in one.__getstate__()
    assert "self.train(False)" in source(module.eval)


def test_upstream_backward(monkeypatch):
    monkeypatch.setattr(torch.autograd, "backward", lambda *args, **kwargs: "ours")
    assert torch.ones(1, requires_grad=True).backward() is None
    assert "torch.autograd.backward(" in source(torch.Tensor.backward)
    called = []
    monkeypatch.undo()
    loss = torch.ones(2, requires_grad=True).sum()
    engine = torch.autograd.Variable._execution_engine

    def queue(_gradient):
        for number in (1, 2):
            engine.queue_callback(lambda number=number: called.append(number))

    loss.register_hook(queue)
    loss.backward()
    assert called == [1, 2]


def test_upstream_optimizers():
    called, parameter = [], torch.ones(1, requires_grad=True)
    optimizer = torch.optim.Adam([parameter])
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    handles = [
        register_optimizer_step_pre_hook(lambda *args: called.append(("pre", args[0], len(args)))),
        register_optimizer_step_post_hook(lambda *args: called.append(("post", args[0], len(args)))),
    ]
    try:
        parameter.sum().backward()
        optimizer.step()
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
    finally:
        for handle in handles:
            handle.remove()
    assert called == [("pre", optimizer, 3), ("post", optimizer, 3), ("pre", optimizer, 3)]
    assert int(optimizer.state[parameter]["step"]) == 1
    code = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
    assert torch.optim.Adam.step.__code__ is code and torch.optim.Adam.step.hooked
    assert "optimizer.step(" in source(torch.amp.GradScaler._maybe_opt_step)


def test_upstream_loaders_copies_and_files(tmp_path):
    loader = torch.utils.data.dataloader
    for kind in (loader._SingleProcessDataLoaderIter, loader._MultiProcessingDataLoaderIter):
        assert kind.__next__ is loader._BaseDataLoaderIter.__next__
    assert "to" not in vars(torch.Tensor) and "cuda" not in vars(torch.Tensor)
    torch.Tensor.to = torch._C.TensorBase.to  # That it can be set and deleted again.
    del torch.Tensor.to
    assert torch.save is torch.serialization.save and torch.load is torch.serialization.load
    torch.save([1], tmp_path / "saved.pt")
    assert torch.load(tmp_path / "saved.pt") == [1]
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"a": torch.ones(2)}, tmp_path / "a")
    assert safetensors.load_file(tmp_path / "a")["a"].tolist() == [1, 1]


def test_upstream_dynamo():
    handler, called = torch._dynamo.callback.callback_handler, []
    start = handler.register_start_callback(lambda _args: called.append("start"))
    end = handler.register_end_callback(lambda _args: called.append("end"))
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    assert called == ["start", "end"]
    assert "callback_handler.clear()" in source(torch._dynamo.reset)
    handler.remove_start_callback(start)
    handler.remove_end_callback(end)
    assert "FrameAction.SKIP, FrameAction.DEFAULT" in source(torch._dynamo.eval_frame.skip_code)
