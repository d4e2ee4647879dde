"""Unusual batches, optimizers, saves, modules and loaders: goodput raises nothing and changes nothing."""

import json

import pytest
from support.frameworks.script_process import run_script
from support.installed import need
from support.mentions import mentions_goodput

need("torch")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    done = run_script(
        "unusual_objects.py", forked="torch", GOODPUT_DIR=str(tmp_path_factory.mktemp("hostile"))
    )
    assert not mentions_goodput(done.stderr), done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_is_raised(found):
    assert found.get("raised", []) == []


def test_unusual_batch_arrives_without_samples(found):
    assert found["sizes"] == [0, 0, 3, 0, 0, 7, 1]
    assert found["samples"] == [0, 0, 3, 0, 0]
    assert found["same"] == [True] * 5


def test_first_batch_and_model_are_not_kept_alive(found):
    assert found["dtype"] == "fp32", "the model was seen"
    assert found["alive"] == [False, False]


def test_step_count_that_is_nan_is_ignored(found):
    assert (found["stepped"], found["known"]) == ([0.0, 0.0], [4, None, None, None, None, None])
    assert found["next"] == 1


def test_checkpoint_is_recognised_by_its_tensors(found):
    assert found["numbers"] == [300, 300, 305]
    assert found["enough"] == 6, "no more is looked at than it takes"
    assert found["bytes"] < 20 << 20, "nothing long is copied"


def test_load_of_a_dictionary_with_its_own_get(found):
    assert (found["step_in"], found["loaded"]) == ([7, None], {"step": 8})


def test_loader_without_fetcher_leaves_no_mark(found):
    assert "_dataset_fetcher" in found["fetcher"]
    assert (found["marked"], found["next_loader"]) == (False, 4)


def test_old_style_modules_are_imported_and_restored(found):
    assert (found["old"], found["restored"]) == ("of_the_old_kind", True)
