"""A small GPT with 2 layers, and its FLOPs by the papers' formula."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from goodput.account.mfu.flops import transformer

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 100, 32, 4, 2, 16, 3


class Block(nn.Module):
    def __init__(self, kv_heads=HEADS):
        super().__init__()
        self.kv_heads, kv_width = kv_heads, WIDTH // HEADS * kv_heads
        self.q, self.k, self.v = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, kv_width),
            nn.Linear(WIDTH, kv_width),
        )
        self.out, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)

        def split(z, heads):
            return z.view(*z.shape[:2], heads, -1).transpose(1, 2)

        q, k, v = split(self.q(y), HEADS), split(self.k(y), self.kv_heads), split(self.v(y), self.kv_heads)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != HEADS)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class GPT(nn.Module):
    """Token embedding shared with the output layer; returns the loss when it gets targets."""

    def __init__(self, reentrant=None, kv_heads=HEADS):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(kv_heads) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.reentrant = reentrant

    def forward(self, tokens, targets=None):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        logits = self.head(x)
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tokens():
    return torch.zeros(BATCH, LENGTH, dtype=torch.long)


def formula(model, **options):
    """By the papers: weights of products, so without biases, norms and the table of places."""
    params = sum(p.numel() for p in model.parameters() if p.dim() == 2) - LENGTH * WIDTH
    sizes = {"layers": LAYERS, "heads": HEADS, "head_dim": WIDTH // HEADS, "context": LENGTH}
    return transformer(params=params, tokens=BATCH * LENGTH, **sizes, **options)
