"""Real DataLoaders with planted limits: the knee follows from the throttle, and batches stay what they are."""

import itertools
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from goodput.cli import main

torch = pytest.importorskip("torch")

from support.forks import server_with  # noqa: E402
from support.paths import SUPPORT  # noqa: E402
from support.probe import planted  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset  # noqa: E402

from goodput.probe.loader import live_waits, probe, sweep, worker_times  # noqa: E402
from goodput.probe.loader.target import TargetError  # noqa: E402
from goodput.probe.loader.variants import Variants  # noqa: E402

COMMAND = str(SUPPORT / "probe" / "command.py")
TRAINING = str(SUPPORT / "probe" / "training.py")
# One of each kind, of few workers; `make probe-limits` has twelve.
SHORT = (
    planted.Plant("cpu", "cpu", "core", 0.060, 0.040, 5),
    planted.Plant("storage", "storage", "server", 0.050, 0.020, 6),
    planted.Plant("lock", "lock", "lock", 0.020, 0.030, 5),
    planted.Plant("collate", "collate", "collate_lock", 0.020, 0.030, 5),
    planted.Plant("copy", "copy", "copy", 0.045, 0.030, 5),
)


@pytest.mark.alone
@pytest.mark.parametrize("plant", SHORT, ids=lambda plant: plant.limit)
def test_planted_limit_and_its_knee(plant, monkeypatch, tmp_path, capsys):
    """By probing the loader, and by what two trainings with 1 and with many workers have recorded of it."""
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    monkeypatch.setattr(probe, "BATCH_FACTORS", ())
    loader = planted.loader(plant, num_workers=1)
    try:
        # Measured longer where the machine was too busy for a fifth of a second to tell.
        for seconds in (0.2, 0.6, 1.2):
            found = probe.probe(loader, probe.Options(plant.workers_max, seconds))
            if found["limit"]["name"] == plant.limit and abs(found["knee"] - plant.knee) <= 1:
                break
    finally:
        loader.dataset.close()
    assert found["limit"]["name"] == plant.limit, found
    assert abs(found["knee"] - plant.knee) <= 1, found
    assert found["use"]["num_workers"] == found["knee"] and found["gain"] >= 1
    for batches in (24, 60, 120):
        document = recorded_by_trainings(plant, batches, tmp_path / str(batches), capsys)
        if document["knee"] is not None and abs(document["knee"] - found["knee"]) <= 1:
            break
    assert document["knee"] is not None and abs(document["knee"] - found["knee"]) <= 1, document
    names = {"storage": "blocked", "lock": "blocked", "copy": "training"}
    assert document["limit"]["name"] == names.get(plant.limit, plant.limit), document


def recorded_by_trainings(plant: planted.Plant, batches: int, directory: Path, capsys) -> dict:
    """What the pages of real trainings with this loader tell."""
    environ = {"GOODPUT_DIR": str(directory), "PYTHONWARNINGS": "ignore"}
    options = json.dumps(asdict(plant))
    processes = [
        ([TRAINING, options, str(workers), str(batches)], {**environ, "GOODPUT_RUN": f"w{workers}"})
        for workers in (1, plant.workers_max)
    ]
    for ended in server_with("torch").run(*processes, seconds=120):
        assert ended.returncode == 0, ended.stderr
    capsys.readouterr()
    words = ["--run", "w1", f"w{plant.workers_max}", "--directory", str(directory)]
    assert main(["probe", "loader", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.alone
def test_running_training_waits_for_a_lock(tmp_path, monkeypatch, capsys):
    """By hand: three workers that do nothing but take a lock in turn, so that two wait for it while one has it.

    A batch every 30 ms is what the lock allows. A step takes 10 ms besides, so without workers a batch would take 40 ms.
    """
    plant = planted.Plant("a lock", "lock", "lock", 0.0, 0.030)
    environ = {"GOODPUT_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore", "GOODPUT_RUN": "running"}
    process = ([TRAINING, json.dumps(asdict(plant)), "3", "200", "0.01"], environ)
    training = threading.Thread(target=server_with("torch").run, args=[process], kwargs={"seconds": 120})
    monkeypatch.setattr(live_waits, "SECONDS", 1.0)
    training.start()
    found = None
    while training.is_alive() and (found is None or found["limit"]["name"] != "lock"):
        time.sleep(0.2)
        if main(["probe", "loader", "--run", "running", "--directory", str(tmp_path), "--json"]) == 0:
            found = json.loads(capsys.readouterr().out)
    training.join()
    printed = capsys.readouterr().err
    assert found is not None and found["limit"]["name"] == "lock", (found, printed)
    assert found["records"][0]["lock_share"] == pytest.approx(2 / 3, abs=0.15), found
    assert found["knee"] in (1, 2), found


@pytest.mark.parametrize("shuffle", [False, True])
def test_order_and_content_of_batches_stay(tmp_path, shuffle):
    """Variants of any number of workers deliver the sampler's batches in its order, one variant after the other."""
    data = TensorDataset(torch.arange(22), torch.arange(22) * 0.5)
    file = tmp_path / "times"
    file.write_bytes(bytes(worker_times.FILE_BYTES))
    loader, same = (
        DataLoader(data, batch_size=4, shuffle=shuffle, generator=torch.Generator().manual_seed(7))
        for _ in range(2)
    )
    # What shuffles draws from the generator; a loader's iterator draws from it too, for the seed of its workers.
    loader.generator = None
    expected = [batch for _ in range(9) for batch in same.batch_sampler]
    variants, at = Variants(loader, str(file)), 0
    for workers in (0, 2, 1):
        taken = list(itertools.islice(variants.make(workers), 7))
        assert [batch[0].tolist() for batch in taken] == expected[at : at + 7]
        assert all(torch.equal(batch[1], batch[0] * 0.5) for batch in taken)
        # Workers read ahead: the next variant goes on behind what this one has read.
        at = list(itertools.accumulate(map(len, expected))).index(variants.samples_read) + 1
        assert at >= 7


class Fails(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        raise KeyError(f"no file {index}")


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(64))


def test_iterable_datasets_are_measured():
    found = probe.probe(DataLoader(Numbers(), batch_size=4), probe.Options(2, 0.05))
    assert found["samples"] is None and "get_worker_info" in found["notes"][0]
    assert [point["workers"] for point in found["workers"]][:3] == [0, 1, 2]


@pytest.mark.parametrize(
    "loader, text",
    [
        (DataLoader(Fails(), batch_size=4), "with 0 workers: KeyError: 'no file 0'"),
        (DataLoader(TensorDataset(torch.zeros(0))), "the loader has no batch"),
    ],
    ids=["failing", "empty"],
)
def test_failing_loader_is_reported(loader, text):
    with pytest.raises(TargetError, match=text):
        probe.probe(loader, probe.Options(2, 0.05))


def test_command_prints_json_and_progress(tmp_path, monkeypatch, capsys):
    (tmp_path / "probed_training.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "def make():\n    return DataLoader(TensorDataset(torch.zeros(64, 2)), batch_size=8)\n"
        "def number():\n    return 5\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    options = ["--seconds", "0.05", "--workers-max", "1", "--json"]
    assert main(["probe", "loader", "probed_training:make", *options]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["use"] == {"num_workers": 0, "pin_memory": False} and found["gain"] == 1.0
    assert "measuring 1 worker\n" in printed.err
    assert [one["batch_size"] for one in found["batch_sizes"]] == [4, 8, 16, 32]
    for name, text in (
        ("probed_training:number", "gives a int, not a torch.utils.data.DataLoader"),
        ("probed_training:none", "probed_training has no none"),
        ("no_such_training:make", "importing no_such_training failed: ModuleNotFoundError"),
        ("make", "'make' is not module:function"),
    ):
        assert main(["probe", "loader", name, *options]) == 1
        assert text in capsys.readouterr().err


def test_probe_is_not_recorded_as_a_training(tmp_path):
    """Of a module that imports goodput.auto, which opens a page at the first loader."""
    (tmp_path / "recorded_training.py").write_text(
        "import goodput.auto, torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "def make():\n    return DataLoader(TensorDataset(torch.zeros(64, 2)), batch_size=8)\n"
        "if __name__ == '__main__':\n    print(len(list(make())))\n"
    )
    environ = {"GOODPUT_DIR": str(tmp_path / "pages")}
    options = ["loader", "recorded_training:make", "--workers-max", "1", "--seconds", "0.05"]
    server = server_with("torch")
    [ended] = server.run(([COMMAND, *options], environ), seconds=120, directory=tmp_path)
    assert ended.returncode == 0 and "use: num_workers=0" in ended.stdout, ended.stderr
    assert not list(tmp_path.glob("pages/*"))
    [ended] = server.run((["recorded_training.py"], environ), seconds=120, directory=tmp_path)
    assert ended.stdout == "8\n" and list(tmp_path.glob("pages/*.page")), ended.stderr


def test_single_samples_are_counted():
    """Without batches an item is one sample, whatever it is made of."""
    loader = DataLoader(TensorDataset(torch.zeros(64, 5)), batch_size=None)
    found = probe.probe(loader, probe.Options(1, 0.05))
    assert {point["samples_per_batch"] for point in found["workers"]} == {1.0}
    assert found["batch_size"] is None and found["batch_sizes"] == []


def test_pinning_is_changed_for_a_gain_alone():
    assert probe.better_pin(False, None) is False
    assert probe.better_pin(True, {"pinned": 95.0, "pageable": 100.0}) is True
    assert probe.better_pin(True, {"pinned": 80.0, "pageable": 100.0}) is False
    assert probe.better_pin(False, {"pinned": 120.0, "pageable": 100.0}) is True


def children() -> set[str]:
    """The child processes of this thread, by pid."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_no_worker_is_left():
    """Persistent ones too, which iterable datasets get."""
    before = children()
    probe.probe(DataLoader(Numbers(), batch_size=4), probe.Options(2, 0.05))
    assert children() <= before


@pytest.mark.parametrize("module, function", [("ends_when_imported", "make"), ("ends_when_called", "make")])
def test_script_that_ends_the_process_is_named(tmp_path, monkeypatch, capsys, module, function):
    """One that trains where it is imported, or whose argparse sees the arguments of `goodput probe`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ends_when_imported.py").write_text("import sys\nsys.exit(2)\n")
    (tmp_path / "ends_when_called.py").write_text("import sys\ndef make(): sys.exit(2)\n")
    assert main(["probe", "loader", f"{module}:{function}"]) == 1
    assert "it ended the process (status 2); put what it runs under" in capsys.readouterr().err
