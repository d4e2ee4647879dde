"""A backward pass node by node gives the gradients of the autograd engine, and the same count."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from goodput.flops import count, node_by_node  # noqa: E402


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, factor, x, y):
        ctx.factor = factor
        ctx.save_for_backward(y)
        return x * factor, y * 2

    @staticmethod
    def backward(ctx, first, second):
        (y,) = ctx.saved_tensors
        return None, first * ctx.factor, second * 2 + 0 * y


class Mixed(nn.Module):
    """Broadcasts, views, a function of its own, an unused output, a shared weight and a checkpoint."""

    def __init__(self, reentrant: bool):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8)
        self.embedding, self.attention = nn.Embedding(5, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.reentrant = reentrant

    def inner(self, x):
        return self.second(torch.relu(self.first(x)))

    def forward(self, ids):
        x = self.norm(self.embedding(ids))
        a, b = x.chunk(2, 1)
        x = torch.cat([a, b * b.mean(-1, keepdim=True)], 1)
        x, _ = Scaled.apply(3.0, x, x * 1)
        x = checkpoint(self.inner, x, use_reentrant=self.reentrant) + self.first(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x @ self.embedding.weight.T


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_equal_the_engines(reentrant):
    torch.manual_seed(0)
    model, ids = Mixed(reentrant).double(), torch.randint(0, 5, (3, 6))
    gradients = []
    for backward in (torch.autograd.backward, node_by_node.backward):
        model.zero_grad()
        output = model(ids)
        backward([output, output.sum()], [torch.ones_like(output), torch.ones((), dtype=output.dtype)])
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) >= 8
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@pytest.mark.parametrize("reentrant", [False, True])
def test_counts_equal_the_engines(reentrant):
    model, ids = Mixed(reentrant), torch.randint(0, 5, (3, 6))
    by_engine = count(model, ids)
    for autocast in (None, "bf16"):
        found = count(model, ids, autocast=autocast, in_forked_process=True)
        assert found[:2] == by_engine[:2] and autocast in (None, found.dtype)
    assert by_engine.hardware_flops > by_engine.model_flops > 0


def test_leaf_output_gets_its_gradient():
    leaf = torch.zeros(3, requires_grad=True)
    node_by_node.backward([leaf], [torch.ones(3)])
    assert torch.equal(leaf.grad, torch.ones(3))
