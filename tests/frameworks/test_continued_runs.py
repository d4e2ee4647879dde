"""A run that began with a checkpoint of another run is named, since it may be the same training under another name."""

import os
import subprocess
import sys

from support.forks import server_with
from support.installed import need

need("torch")
TRAIN = """
import sys, torch, goodput.auto
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if len(sys.argv) > 2:
    model.load_state_dict(torch.load(sys.argv[2]))
for _ in range(5):
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(model.state_dict(), sys.argv[1])
"""


def test_run_from_another_runs_checkpoint_is_named(tmp_path):
    environ = os.environ | {"GOODPUT_DIR": str(tmp_path / "pages"), "GOODPUT_COUNT_FLOPS": "0"}

    def train(run: str, *arguments: str) -> None:
        process = ["-c", TRAIN, *arguments], environ | {"GOODPUT_RUN": run}
        (done,) = server_with("torch").run(process, seconds=120, directory=str(tmp_path))
        assert done.returncode == 0, done.stderr

    def hints(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "goodput", "report", *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
        return [line for line in done.stderr.splitlines() if "checkpoint that run" in line]

    train("first", "1.pt")
    train("fresh", "2.pt")
    assert hints() == []
    train("again", "3.pt", "1.pt")
    train("first", "4.pt", "1.pt")  # The same run resumes.
    (text,) = hints()
    assert "run 'again' began with the checkpoint that run 'first' committed at step 4" in text
    assert "goodput run --name first" in text
    assert hints("--run", "fresh") == [] and hints("--run", "again") == [text]
