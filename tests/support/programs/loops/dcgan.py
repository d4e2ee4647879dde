"""Two networks and two optimizers that step in turn, fed by a loader whose collate_fn is slow."""

import sys
import time

import torch
from support.programs.kernels import Kernels
from support.programs.stopwatch import Stopwatch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

watch = Stopwatch()
BATCH, LATENT = 16, 32


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 64, 4), nn.BatchNorm2d(64), nn.ReLU(), Kernels(0.02),
        nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def discriminator():
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.BatchNorm2d(64),
        nn.LeakyReLU(0.2), nn.Conv2d(64, 1, 4), nn.Sigmoid(), nn.Flatten(0),
    )  # fmt: skip


def collate(samples):
    """A batch, pixel row by pixel row."""
    until, rows = time.thread_time() + 0.02, []
    while time.thread_time() < until:
        rows = [torch.stack([image[:, row] for (image,) in samples]) for row in range(16)]
    return torch.stack(rows, 2)


def main():
    torch.manual_seed(3)
    loader = DataLoader(TensorDataset(torch.rand(640, 3, 16, 16)), BATCH, shuffle=True, collate_fn=collate)
    net_g, net_d = generator(), discriminator()
    criterion, losses = nn.BCELoss(), []
    optimizer_d = optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for real in watch.each("loader", loader):
        with watch("compute"):
            # Update D: maximize log(D(x)) + log(1 - D(G(z)))
            net_d.zero_grad()
            error_real = criterion(net_d(real), torch.ones(BATCH))
            error_real.backward()
            fake = net_g(torch.randn(BATCH, LATENT, 1, 1))
            error_fake = criterion(net_d(fake.detach()), torch.zeros(BATCH))
            error_fake.backward()
            optimizer_d.step()
            # Update G: maximize log(D(G(z)))
            net_g.zero_grad()
            error_g = criterion(net_d(fake), torch.ones(BATCH))
            error_g.backward()
            optimizer_g.step()
        watch.step()
        losses.extend([error_real.item(), error_fake.item(), error_g.item()])
    watch.write(sys.argv[1], net_d, losses)


if __name__ == "__main__":
    main()
