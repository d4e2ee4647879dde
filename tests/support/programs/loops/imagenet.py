"""A residual network on images whose files are slow to read, with meters, a validation and a checkpoint each epoch."""

import os
import sys
import time

import torch
from support.programs.stopwatch import Stopwatch
from torch import nn
from torch.utils.data import DataLoader, Dataset

watch = Stopwatch()


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, count=1):
        self.sum += value * count
        self.count += count


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return torch.relu(x + self.layers(x))


def resnet():
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2), *(Block(16) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip


class ImageFolder(Dataset):
    """Images in files on a disk with a seek time of 12 ms."""

    def __init__(self, root: str, count: int):
        self.paths = [os.path.join(root, f"{number}.pt") for number in range(count)]
        os.makedirs(root, exist_ok=True)
        for path in self.paths:
            torch.save(torch.randn(3, 32, 32), path)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        time.sleep(0.012)
        return torch.load(self.paths[index]), index % 10


def train(loader, model, criterion, optimizer, losses):
    batch_time, data_time = AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    for images, target in watch.each("loader", loader):
        data_time.update(time.time() - end)
        with watch("compute"):
            output = model(images)
            loss = criterion(output, target)
            correct = (output.argmax(1) == target).float().mean()
            losses.extend([loss.item(), correct.item()])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        watch.step()
        batch_time.update(time.time() - end)
        end = time.time()


def validate(loader, model, criterion, losses):
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            losses.append(criterion(model(images), target).item())


def main():
    torch.manual_seed(2)
    here = os.path.dirname(sys.argv[1])
    dataset = ImageFolder(os.path.join(here, "images"), 128)
    train_loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    validation_loader = DataLoader(torch.utils.data.Subset(dataset, range(16)), batch_size=16)
    model, criterion, losses = resnet(), nn.CrossEntropyLoss(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    for epoch in range(2):
        train(train_loader, model, criterion, optimizer, losses)
        with watch("evaluation"):
            validate(validation_loader, model, criterion, losses)
        with watch("checkpoint"):
            state = {"epoch": epoch, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, os.path.join(here, "checkpoint.pth.tar"))
    watch.write(sys.argv[1], model, losses)


if __name__ == "__main__":
    main()
