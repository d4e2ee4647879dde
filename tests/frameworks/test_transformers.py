"""A real Trainer of transformers on a model made at random: what was planted is found, nothing changes."""

import pytest
from support.frameworks.training_runs import committed, resumed, steps, train

from goodput.account.flops import transformer

pytestmark = pytest.mark.alone

CALLBACK, AUTO, DISABLED = "callback", "auto alone", "disabled"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    made = {}

    def get(which):
        if which not in made:
            directory = tmp_path_factory.mktemp("trainer")
            args = ["auto"] if which == AUTO else []
            environ = {"GOODPUT_DISABLE": "1"} if which == DISABLED else {}
            made[which] = train("transformers_trainings.py", directory, *args, **environ)
        return made[which]

    return get


either = pytest.mark.parametrize("which", [CALLBACK, AUTO])


@pytest.mark.parametrize("which", [CALLBACK, AUTO, DISABLED])
def test_weights_are_the_same(trained, which):
    run = trained(which)
    assert run.printed["bare"] == run.printed["measured"]
    assert run.messages() == []


def test_nothing_is_measured_when_disabled(trained):
    assert not trained(DISABLED).directory.exists()


@either
def test_optimizer_steps_resume_at_the_checkpoint(trained, which):
    first, second, third = trained(which).snapshots("planted")
    assert steps(first) == list(range(12)) and resumed(first) == []
    assert steps(second) == list(range(12, 16)) and resumed(second) == [11]
    assert steps(third) == list(range(12, 18)) and resumed(third) == [11]


@either
def test_samples_are_counted(trained, which):
    """An epoch of 60 is 7 steps of 8 and one of 4. Accelerate asks for a batch more than it hands out."""
    first = trained(which).snapshots("planted")[0]
    assert [row.samples for row in first.steps] == [12, 20, 28, 36, 44, 52, 60, 60, 72, 80, 88, 96]


@either
def test_only_repeated_steps_are_lost(trained, which):
    run = trained(which)
    account = run.account("planted")
    assert run.kept_and_lost("planted") == (18, 4)
    (rank,) = account.ranks
    assert sum(rank.states) == account.end_ns - account.start_ns


@either
def test_checkpoint_is_one_event_pair_with_its_step(trained, which):
    first = trained(which).snapshots("planted")[0]
    assert committed(first) == [3, 7, 11]
    assert [e.step for e in first.events if e.kind == "checkpoint_begun"] == [3, 7, 11]


@either
def test_slow_dataset_and_evaluation_are_found(trained, which):
    run = trained(which)
    first = run.snapshots("planted")[0]
    spent = dict(zip(first.phases, (ns / 1e9 for ns in first.totals), strict=True))
    planted, evaluation = run.printed["loader"], run.printed["evaluation"]
    waited = run.printed["core_wait"]
    assert planted <= spent["loader"] <= 1.05 * planted + 0.03 + waited
    assert abs(spent["evaluation"] - evaluation) <= 0.02 * evaluation + 0.01 + waited


@either
def test_little_is_left_unattributed(trained, which):
    """What is left is the Trainer's own work between two phases, about 2 ms a step here, and that after training."""
    run = trained(which)
    assert run.states("planted")["unattributed"] < 0.01 * 22 + 0.1 + run.printed["core_wait"]


@either
def test_evaluation_without_training(trained, which):
    run = trained(which)
    (page,) = run.snapshots("alone")
    spent = run.seconds("alone")
    assert page.steps == [] and spent["loader"] == spent["forward"] == 0
    assert spent["evaluation"] == pytest.approx(
        run.printed["alone"], abs=max(0.05 * run.printed["alone"], 0.01) + run.printed["core_wait"]
    )


def test_several_trainings_of_a_process_are_kept(trained):
    run = trained(CALLBACK)
    (page,) = run.snapshots("several")
    assert steps(page) == list(range(9)) and resumed(page) == []
    assert run.kept_and_lost("several") == (9, 0)
    assert run.seconds("several")["evaluation"] == 0


def test_failed_training_loses_repeated_steps(trained):
    run = trained(CALLBACK)
    first, second = run.snapshots("broken")
    assert steps(first) == list(range(6)) and committed(first) == [1, 3, 5]
    assert steps(second) == list(range(4, 8)) and resumed(second) == [3]
    assert run.kept_and_lost("broken") == (8, 2)


def test_precision_and_accumulation_are_recorded(trained):
    run = trained(CALLBACK)
    (first, *_), (last,) = run.snapshots("planted"), run.snapshots("several")
    assert (first.identity["dtype"], first.identity["microbatches"]) == ("fp32", 2)
    assert (last.identity["dtype"], last.identity["microbatches"]) == ("bf16", 1)


def test_flops_follow_from_the_models_sizes(trained):
    """By hand: a layer has 32 x 96 + 32 x 32 + 2 x 32 x 128 weights, the output layer 50 x 32; tokens are 8 x 24."""
    params = 2 * (3072 + 1024 + 8192) + 1600
    want = transformer(params=params, tokens=192, layers=2, heads=2, head_dim=16, context=24)
    first, _ = trained(CALLBACK).snapshots("broken")
    assert first.identity["flops_per_step"] == want.model == 6 * params * 192 + 12 * 2 * 32 * 24 * 192
    assert first.identity["hardware_flops_per_step"] == want.hardware


def test_sizes_are_unknown_without_text_input():
    """Encoders and decoders see different numbers of tokens, and an image's tokens are not in the batch."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from goodput.transformers import sizes_of

    tiny = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 20}
    assert sizes_of(transformers.T5ForConditionalGeneration(transformers.T5Config(**tiny))) is None
    assert sizes_of(object()) is None


def test_experts_windows_and_frozen_weights_are_counted():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from goodput.transformers import sizes_of

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.MixtralConfig(
        **sizes,
        num_hidden_layers=3,
        vocab_size=20,
        num_local_experts=4,
        num_experts_per_tok=1,
        sliding_window=8,
    )
    model = transformers.MixtralForCausalLM(config)
    model.lm_head.weight.requires_grad = False
    found = sizes_of(model)
    # Of a layer: four attention matrices, the router, and one of four experts of three matrices.
    layer = 4 * 16 * 16 + 4 * 16 + 3 * 16 * 32
    assert found.params == 3 * layer + 20 * 16 and found.frozen == 20 * 16
    assert found.windows == [8, 8, 8]
    trained = 6 * found.params - 2 * found.frozen + 12 * 3 * 16 * 8
    assert found.flops(64, 32, False).model == 64 * trained
    assert found.flops(64, 32, True).hardware == 64 * (trained + 2 * 3 * layer + 4 * 3 * 16 * 8)
