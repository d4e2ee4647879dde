"""Files that are checkpoints, files that are not, and saves that fail."""

import io
import os
import tempfile

import safetensors.torch
import torch
from support.frameworks.scripts.loop_variants.cases import Slow, batches, case, one_step, pause

import goodput


def saved(save) -> dict:
    """A loop that saves after its third step, and the step index that a checkpoint of it has."""
    model = Slow()
    optimizer, steps = torch.optim.Adam(model.parameters()), 0
    recorder = goodput._session.recorder
    for x, y in batches():
        one_step(model, optimizer, x, y)
        steps += 1
        if steps == 3:
            at = recorder.step_next - 1
            with tempfile.TemporaryDirectory() as directory:
                save(model, optimizer, os.path.join(directory, "saved.pt"))
    return {"steps": steps, "at": at}


def saved_and_committed(save) -> dict:
    found = saved(save)
    return {**found, "events": [["checkpoint_begun", found["at"]], ["checkpoint_committed", found["at"]]]}


def saved_and_begun(save) -> dict:
    found = saved(save)
    return {**found, "events": [["checkpoint_begun", found["at"]]]}


@case
def a_state_dict_saved():
    return saved_and_committed(lambda model, optimizer, path: torch.save(model.state_dict(), path))


@case
def all_in_one_file_saved():
    def save(model, optimizer, path):
        with open(path, "wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, file)

    return saved_and_committed(save)


@case
def a_model_saved():
    return saved_and_committed(lambda model, optimizer, path: torch.save(model, path))


@case
def metrics_saved():
    found = saved(lambda model, optimizer, path: torch.save({"loss": torch.ones(3), "epoch": 1}, path))
    return {**found, "events": []}


@case
def saved_to_memory():
    return saved_and_begun(lambda model, optimizer, path: torch.save(model.state_dict(), io.BytesIO()))


@case
def a_save_that_fails():
    def save(model, optimizer, path):
        try:
            torch.save({**model.state_dict(), "of": lambda: 0}, path)
        except Exception:
            pass

    return saved_and_begun(save)


@case
def saved_by_safetensors():
    return saved_and_committed(
        lambda model, optimizer, path: safetensors.torch.save_file(model.state_dict(), path)
    )


@case
def states_collected_and_set():
    """As before a distributed save and after a load; what collects a state in a step that trains is part of the step."""
    from torch.distributed.checkpoint import state_dict

    waited = {"get": 0.0, "set": 0.0}

    class Sharded(Slow):
        def state_dict(self, *args, **kwargs):
            waited["get"] += pause()
            return super().state_dict(*args, **kwargs)

        def load_state_dict(self, *args, **kwargs):
            waited["set"] += pause()
            return super().load_state_dict(*args, **kwargs)

    model, steps, collected = Sharded(), 0, {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches():
        if collected:
            before = dict(waited)
            state_dict.set_model_state_dict(model, collected)
            waited["get"] = before["get"]  # Setting a state reads it too.
        loss = torch.nn.functional.mse_loss(model(x), y)
        before = dict(waited)
        state_dict.get_model_state_dict(model)
        waited.update(before)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        collected = state_dict.get_model_state_dict(model)
        steps += 1
    return {
        "steps": steps,
        "events": [],
        "least": {"checkpoint": waited["get"], "restore": waited["set"]},
        "most": {"checkpoint": waited["get"]},
    }
