"""A variational autoencoder with a loss function of its own, whose tests take longer than its training."""

import sys

import torch
import torch.nn.functional as F
from support.programs.stopwatch import Stopwatch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

watch = Stopwatch()


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 800), nn.Linear(800, 20), nn.Linear(800, 20)
        self.fc3, self.fc4 = nn.Linear(20, 800), nn.Linear(800, 784)

    def encode(self, x):
        hidden = F.relu(self.fc1(x))
        return self.fc21(hidden), self.fc22(hidden)

    def reparameterize(self, mu, logvar):
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 784))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(reconstruction, x, mu, logvar):
    bce = F.binary_cross_entropy(reconstruction, x.view(-1, 784), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def train(model, loader, optimizer, losses):
    model.train()
    for (data,) in watch.each("loader", loader):
        with watch("compute"):
            optimizer.zero_grad()
            reconstruction, mu, logvar = model(data)
            loss = loss_function(reconstruction, data, mu, logvar)
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
        watch.step()


def test(model, loader, losses):
    model.eval()
    with torch.no_grad():
        for (data,) in loader:
            losses.append(loss_function(*model(data)[:1], data, *model(data)[1:]).item())
        losses.append(model.decode(torch.randn(64, 20)).sum().item())


def main():
    torch.manual_seed(4)
    train_loader = DataLoader(TensorDataset(torch.rand(1280, 1, 28, 28)), batch_size=64, shuffle=True)
    test_loader = DataLoader(TensorDataset(torch.rand(4800, 1, 28, 28)), batch_size=64)
    model, losses = VAE(), []
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    for _epoch in range(3):
        train(model, train_loader, optimizer, losses)
        with watch("evaluation"):
            test(model, test_loader, losses)
    watch.write(sys.argv[1], model, losses)


if __name__ == "__main__":
    main()
