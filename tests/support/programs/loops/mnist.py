"""A convolutional network on generated digits whose transform is slow, with a test after each epoch."""

import sys
import time

import torch
import torch.nn.functional as F
from support.programs.stopwatch import Stopwatch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

watch = Stopwatch()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1)
        self.conv2 = nn.Conv2d(16, 32, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(4608, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def augment(image: torch.Tensor) -> torch.Tensor:
    """A transform that keeps a core busy for 1 ms."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        image = image.flip(1).flip(1)
    return image


class Digits(Dataset):
    def __init__(self, count: int, transform=None):
        self.images, self.labels = torch.randn(count, 1, 28, 28), torch.randint(0, 10, (count,))
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        return (self.transform(image) if self.transform else image), self.labels[index]


def train(model, device, loader, optimizer, losses):
    model.train()
    for data, target in watch.each("loader", loader):
        with watch("compute"):
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        watch.step()
        losses.append(loss.item())


def test(model, device, loader, losses):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for data, target in loader:
            output = model(data.to(device))
            total += F.nll_loss(output, target.to(device), reduction="sum").item()
    losses.append(total / len(loader.dataset))


def main():
    torch.manual_seed(1)
    device = torch.device("cpu")
    train_loader = DataLoader(Digits(640, augment), batch_size=32, shuffle=True)
    test_loader = DataLoader(Digits(640), batch_size=64)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler, losses = StepLR(optimizer, step_size=1, gamma=0.7), []
    for _epoch in range(2):
        train(model, device, train_loader, optimizer, losses)
        with watch("evaluation"):
            test(model, device, test_loader, losses)
        scheduler.step()
    watch.write(sys.argv[1], model, losses)


if __name__ == "__main__":
    main()
