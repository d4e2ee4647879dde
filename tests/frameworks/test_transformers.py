"""Sizes of transformers' models, from which their FLOPs follow."""

import os
import subprocess
import sys

import pytest
from support.installed import need

from goodput.rank_page.reader import Reader


def test_sizes_are_unknown_without_text_input():
    """Encoders and decoders see different numbers of tokens, and an image's tokens are not in the batch."""
    need("torch")
    transformers = pytest.importorskip("transformers")
    from goodput.transformers import sizes_of

    tiny = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 20}
    assert sizes_of(transformers.T5ForConditionalGeneration(transformers.T5Config(**tiny))) is None
    assert sizes_of(object()) is None


def test_experts_windows_and_frozen_weights_are_counted():
    need("torch")
    transformers = pytest.importorskip("transformers")
    from goodput.transformers import sizes_of

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.MixtralConfig(
        **sizes,
        num_hidden_layers=3,
        vocab_size=20,
        num_local_experts=4,
        num_experts_per_tok=1,
        sliding_window=8,
    )
    model = transformers.MixtralForCausalLM(config)
    model.lm_head.weight.requires_grad = False
    found = sizes_of(model)
    # Of a layer: four attention matrices, the router, and one of four experts of three matrices.
    layer = 4 * 16 * 16 + 4 * 16 + 3 * 16 * 32
    assert found.params == 3 * layer + 20 * 16 and found.frozen == 20 * 16
    assert found.windows == [8, 8, 8]
    trained = 6 * found.params - 2 * found.frozen + 12 * 3 * 16 * 8
    assert found.flops(64, 32, False).model == 64 * trained
    assert found.flops(64, 32, True).hardware == 64 * (trained + 2 * 3 * layer + 4 * 3 * 16 * 8)


def test_total_steps_without_other_calls(tmp_path):
    """The Trainer knows them before its first step opens the page."""
    for name in ("torch", "accelerate", "transformers"):
        need(name)
    script = tmp_path / "train.py"
    script.write_text("""
import torch, transformers
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
    def forward(self, x):
        return {"loss": self.layer(x).sum()}
data = [{"x": torch.ones(2)}] * 24
options = {"output_dir": "out", "per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "save_strategy": "no"}
transformers.Trainer(Model(), transformers.TrainingArguments(**options), train_dataset=data).train()
""")
    environ = dict(os.environ, GOODPUT_DIR=str(tmp_path / "pages"))
    command = [sys.executable, "-c", "from goodput.cli import main; main()", "run", str(script)]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "pages").glob("*.page")
    with Reader(str(path)) as reader:
        assert reader.identity["total_steps"] == 18
    assert "total_steps is not declared" not in " ".join(done.stderr.split())
