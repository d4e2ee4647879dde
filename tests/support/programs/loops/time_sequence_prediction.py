"""Recurrent cells trained by LBFGS, whose closure runs the model many times in one step."""

import sys

import torch
from support.programs.kernels import Kernels
from support.programs.stopwatch import Stopwatch
from torch import nn, optim

watch = Stopwatch()


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, 24), nn.LSTMCell(24, 24)
        self.linear, self.kernels = nn.Linear(24, 1), Kernels(0.05)

    def forward(self, values, future=0):
        outputs = []
        h, c, h2, c2 = (values.new_zeros(values.size(0), 24) for _ in range(4))
        output = values[:, :1]
        for at in range(values.size(1) + future):
            step = values[:, at : at + 1] if at < values.size(1) else output
            h, c = self.lstm1(step, (h, c))
            h2, c2 = self.lstm2(h, (h2, c2))
            output = self.linear(h2)
            outputs.append(output)
        return self.kernels(torch.cat(outputs, dim=1))


def main():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.double)
    wave = torch.sin(torch.arange(60) / 5 + torch.randint(-10, 10, (24, 1)))
    data, target, losses = wave[3:, :-1], wave[3:, 1:], []
    test_data, test_target = wave[:3, :-1], wave[:3, 1:]
    model, criterion = Sequence(), nn.MSELoss()
    optimizer = optim.LBFGS(model.parameters(), lr=0.8, max_iter=6)
    for _step in range(4):

        def closure():
            optimizer.zero_grad()
            loss = criterion(model(data), target)
            losses.append(loss.item())
            loss.backward()
            return loss

        with watch("compute"):
            optimizer.step(closure)
        watch.step()
        with watch("evaluation"), torch.no_grad():
            prediction = model(test_data, future=400)
            losses.append(criterion(prediction[:, :-400], test_target).item())
            values = prediction.numpy()
        losses.append(values.sum())
    watch.write(sys.argv[1], model, losses)


if __name__ == "__main__":
    main()
