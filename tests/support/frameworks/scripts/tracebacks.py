"""Writes the tracebacks of a user's errors, first without goodput and then with it, as JSON."""

import json
import os
import sys
from pathlib import Path

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, fails=False):
        if fails:
            try:
                raise KeyError("cause")
            except KeyError:
                raise ValueError("user's") from None
        return self.layer(x)


class Raising(torch.optim.SGD):
    fails = False

    def step(self, closure=None):
        if self.fails:
            raise RuntimeError("optimizer")
        return super().step(closure)


class RaisingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("backward")


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 6:
            try:
                return [][index]
            except IndexError:
                raise OSError("a sample that cannot be read")  # noqa: B904 - with its context
        return torch.ones(4)


def collate(samples):
    raise ValueError("samples of different sizes")


class UnreadableSampler(torch.utils.data.Sampler):
    def __iter__(self):
        raise LookupError("no indices")

    def __len__(self):
        return 8


class Unwritable:
    def __reduce__(self):
        raise TypeError("cannot be pickled")


def described(error: BaseException | None) -> list:
    """The frames of the error and of its contexts; with the line where a file has one place for each."""
    chain = []
    while error is not None:
        trace, frames = error.__traceback__, []
        while trace is not None:
            code = trace.tb_frame.f_code
            line = trace.tb_lineno if code.co_filename == __file__ else 0
            frames.append((code.co_filename, code.co_name, line))
            trace = trace.tb_next
        # A worker's traceback travels as text.
        text = str(error) if "Traceback" in str(error) else ""
        chain.append((type(error).__name__, error.__suppress_context__, frames, text))
        error = error.__context__
    return chain


def failing(optimizer, step):
    def call():
        optimizer.fails = True
        try:
            step()
        finally:
            optimizer.fails = False

    return call


def errors_of(directory: str) -> dict:
    net, wrong, right = Net(), torch.ones(2, 3), torch.ones(2, 4)
    optimizer, scaler, found = Raising(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu"), {}

    def attempt(name, call):
        try:
            call()
        except BaseException as error:
            found[name] = described(error)

    def loaded(**options):
        return lambda: list(torch.utils.data.DataLoader(Samples(), batch_size=2, **options))

    def steps():
        for _ in range(3):
            net(right).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    for name in ("first", "later"):  # Before the first step, and where the hooks are in their common case.
        attempt(f"{name} forward", lambda: net(right, fails=True))
        attempt(f"{name} shape", lambda: net(wrong))
        attempt(f"{name} backward", lambda: RaisingBackward.apply(net(right)).sum().backward())
        attempt(f"{name} grad", lambda: torch.autograd.grad(RaisingBackward.apply(net(right)).sum(), wrong))
        attempt(f"{name} optimizer", failing(optimizer, optimizer.step))
        attempt(f"{name} scaler", failing(optimizer, lambda: scaler.step(optimizer)))
        attempt(f"{name} loader", loaded())
        attempt(f"{name} collate", loaded(collate_fn=collate))
        attempt(f"{name} iter", loaded(sampler=UnreadableSampler()))
        attempt(f"{name} save", lambda: torch.save({"net": net.state_dict(), "x": Unwritable()}, os.devnull))
        attempt(f"{name} load", lambda: torch.load(os.path.join(directory, "none.pt")))
        attempt(f"{name} train", lambda: net.train("yes"))  # pyright: ignore[reportArgumentType] - the error is the subject
        attempt(f"{name} collective", lambda: torch.distributed.all_reduce(right))
        attempt(f"{name} group", lambda: torch.distributed.init_process_group("unknown"))
        attempt(f"{name} optimizer without parameters", lambda: torch.optim.SGD([], lr=0.1))
        with torch.no_grad():
            attempt(f"{name} no_grad", lambda: net(wrong))
        net.eval()
        attempt(f"{name} evaluation", lambda: net(wrong))
        net.train()
        steps()
    attempt("worker", loaded(num_workers=1))
    attempt("worker's collate", loaded(num_workers=1, collate_fn=collate))
    compiled = torch.compile(net, backend="eager")
    attempt("compiled", lambda: compiled(wrong))
    attempt("after a compilation", lambda: net(wrong))
    attempt("optimizer after a compilation", failing(optimizer, optimizer.step))
    attempt("import", lambda: __import__("safetensors.torch"))
    return found


if __name__ == "__main__":
    written = Path(sys.argv[1])
    broken = written.parent / "safetensors"  # A module that goodput.auto patches once it has been imported.
    broken.mkdir()
    (broken / "__init__.py").write_text("raise LookupError('user')\n")
    sys.path.insert(0, str(written.parent))
    without = errors_of(str(written.parent))
    import goodput.auto

    measured = errors_of(str(written.parent))
    written.write_text(
        json.dumps({"without": without, "measured": measured, "steps": goodput._session.recorder.steps})
    )
