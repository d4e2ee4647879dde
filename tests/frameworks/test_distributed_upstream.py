"""What the patches of distributed training rely on in PyTorch, read from its installed sources: fails if that changes.

Behaviour beyond it is held by the tests that run ranks (test_distributed_*.py).
"""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from goodput.sdk.automatic.frameworks.torch import communication, fsdp


def source(path: str) -> ast.Module:
    spec = find_spec("torch")
    if spec is None:
        pytest.skip("needs PyTorch: pip install torch==2.13.0")
    return ast.parse((Path(spec.origin).parent / path).read_text())


def function(path: str, *names: str) -> str:
    """The text of a function, found by the names of its classes and its own."""
    node = source(path)
    for name in names:
        node = next(n for n in ast.walk(node) if getattr(n, "name", None) == name)
    return ast.unparse(node)


def test_collectives_are_functions_of_distributed_c10d():
    tree = source("distributed/distributed_c10d.py")
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(communication.NAMES) <= found
    # One that is new and takes async_op waits like the others; these two return at once.
    waiting = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(a.arg == "async_op" for a in node.args.args)
    }
    assert waiting - set(communication.NAMES) <= {"isend", "irecv"}


def test_ddp_waits_in_the_wrapped_methods():
    path, kind = "nn/parallel/distributed.py", "DistributedDataParallel"
    forward = function(path, kind, "_pre_forward")
    assert "self._sync_buffers()" in forward and "self.reducer._rebuild_buckets()" in forward
    assert "queue_callback" in function(path, "_DDPSink", "backward")


def test_fsdp1_waits_in_the_wrapped_functions():
    path = "distributed/fsdp/_runtime_utils.py"
    for name in fsdp.FSDP1:
        text = function(path, name)
        assert "current_stream" in text and ".wait_stream(" in text
    assert "current_stream().wait" not in function(path, "_post_backward_hook")
    queue = function(path, "_register_post_backward_final_callback")
    assert "queue_callback(functools.partial(_post_backward_final_callback, state, module))" in queue
    assert "functools.partial(_pre_backward_hook, state, module, handle)" in function(
        path, "_register_pre_backward_hooks"
    )
    assert "_pre_forward_unshard" in function(
        "distributed/fsdp/fully_sharded_data_parallel.py", "FullyShardedDataParallel", "forward"
    )


def test_fsdp2_waits_in_the_wrapped_methods():
    folder = "distributed/fsdp/_fully_shard"
    group, state = f"{folder}/_fsdp_param_group.py", f"{folder}/_fsdp_state.py"
    assert "foreach_all_gather_copy_out(" in function(group, "FSDPParamGroup", "wait_for_unshard")
    copied = function(f"{folder}/_fsdp_collectives.py", "foreach_all_gather_copy_out")
    assert "current_stream().wait_event(all_gather_event)" in copied and "all_gather_work.wait()" in copied
    after = function(group, "FSDPParamGroup", "post_backward")
    assert "current_stream().wait_event(" in after and "foreach_reduce(" in after
    assert "current_stream().wait_event(" in function(group, "FSDPParamGroup", "finalize_backward")
    assert "current_stream().wait" not in function(group, "FSDPParamGroup", "unshard")
    final = function(state, "FSDPState", "_root_post_backward_final_callback")
    assert "fsdp_param_group.finalize_backward()" in final
    assert "queue_callback(self._root_post_backward_final_callback)" in function(
        state, "FSDPState", "_register_root_post_backward_final_callback"
    )
    # By hooks that look methods up when they are called, so that the classes' are found.
    assert "fsdp_param_group.pre_forward(" in function(state, "FSDPState", "_pre_forward")
    assert "FSDPParamGroup" in function(state, "FSDPState")


def test_functional_collectives_call_wait_tensor():
    path = "distributed/_functional_collectives.py"
    for name in ("trigger_wait", "wait"):
        assert "wait_tensor(self.elem)" in function(path, "AsyncCollectiveTensor", name)
    text = ast.unparse(source(path))
    assert "traceable_collective_remaps = {" in text and "all_reduce as legacy_allreduce" in text
    rewrite = function("_dynamo/variables/functions.py", "CollectiveFunctionRewriteVariable")
    assert "_traceable_collective_remaps()" in rewrite and "dist.all_reduce" in rewrite


def test_checkpoints_call_the_wrapped_functions():
    folder = "distributed/checkpoint"
    assert "upload_completion" in function(f"{folder}/state_dict_saver.py", "AsyncSaveResponse")
    prepared = function(f"{folder}/state_dict.py", "_init_optim_state")
    assert "optim.step(closure=None)" in prepared
    assert "_init_optim_state(optim)" in function(f"{folder}/state_dict.py", "_get_optim_state_dict")
    process = function(f"{folder}/_async_process_executor.py", "_AsyncCheckpointProcess")
    assert "target=self._checkpointing_subprocess" in process and "dist.init_process_group(" in process


def test_backward_is_looked_up_by_name():
    assert "torch.autograd.backward(" in function("_tensor.py", "Tensor", "backward")
    assert "unpatched_nn_module_call = torch.nn.Module.__call__" in ast.unparse(source("_dynamo/utils.py"))
