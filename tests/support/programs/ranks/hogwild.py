"""Two processes without ranks that train one model in shared memory without locks (Hogwild), each with its own loader.

They overwrite each other's updates, so weights and losses differ from run to run, with goodput or without: alone of
this set, this program has none to compare.
"""

import sys

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from support.programs.stopwatch import Stopwatch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def train(number, model, data, path):
    watch = Stopwatch()
    torch.manual_seed(1 + number)
    optimizer, losses = optim.SGD(model.parameters(), lr=0.01, momentum=0.5), []
    for x, y in watch.each("loader", DataLoader(data, 64, shuffle=True)):
        with watch("compute"):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        watch.step()
        losses.append(loss.item())
    watch.write(path.replace(".json", f".{number}.json"), {}, [])


def main():
    torch.manual_seed(1)
    mp.set_start_method("spawn")
    model = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10)).share_memory()
    data = TensorDataset(torch.randn(3200, 784), torch.randint(0, 10, (3200,)))
    processes = [mp.Process(target=train, args=(number, model, data, sys.argv[1])) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
