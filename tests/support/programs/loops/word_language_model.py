"""A recurrent language model on slices of a long text (BPTT), whose update is written by hand, without an optimizer."""

import sys
import time

import torch
import torch.nn.functional as F
from support.programs.kernels import Kernels
from support.programs.stopwatch import Stopwatch
from torch import nn

watch = Stopwatch()
BPTT, TOKENS, LEARNING_RATE, CLIP = 16, 200, 5.0, 0.25


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(TOKENS, 96), nn.LSTM(96, 96, 2, dropout=0.2)
        self.decoder, self.kernels = nn.Linear(96, TOKENS), Kernels(0.05)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return F.log_softmax(self.decoder(self.kernels(output)).view(-1, TOKENS), dim=1), hidden

    def init_hidden(self, batch):
        return tuple(next(self.parameters()).new_zeros(2, batch, 96) for _ in range(2))


def batchify(data, batch):
    return data[: len(data) // batch * batch].view(batch, -1).t().contiguous()


def get_batch(source, i):
    """A slice of the text, from a slow source."""
    time.sleep(0.008)
    length = min(BPTT, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


def evaluate(model, source, outputs):
    model.eval()
    hidden = model.init_hidden(10)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, BPTT):
            data, targets = get_batch(source, i)
            output, hidden = model(data, hidden)
            outputs.append(F.nll_loss(output, targets).item())


def train(model, source, outputs):
    model.train()
    hidden = model.init_hidden(20)
    for i in range(0, source.size(0) - 1, BPTT):
        with watch("loader"):
            data, targets = get_batch(source, i)
        with watch("compute"):
            model.zero_grad()
            hidden = tuple(h.detach() for h in hidden)
            output, hidden = model(data, hidden)
            loss = F.nll_loss(output, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-LEARNING_RATE)
        watch.step()
        outputs.append(loss.item())


def main():
    torch.manual_seed(1111)
    text = torch.randint(0, TOKENS, (8000,))
    train_data, val_data = batchify(text, 20), batchify(text[:1000], 10)
    model, outputs = RNNModel(), []
    for _epoch in range(2):
        train(model, train_data, outputs)
        with watch("evaluation"):
            evaluate(model, val_data, outputs)
    watch.write(sys.argv[1], model, outputs)


if __name__ == "__main__":
    main()
