"""Model, Adam and the measured peak: finite differences, numbers worked by hand, data parallelism."""

from __future__ import annotations

import time

import numpy as np
import pytest

from goodput.demo.model import Adam, Model, Sizes
from goodput.demo.peak import measured_peak_flops_per_second


def _small(hidden=(7, 6), seed: int = 1, **options) -> Model:
    return Model(Sizes(vocabulary=11, context=3, embedding=4, hidden=hidden, seed=seed), **options)


def _rows(batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.integers(0, 11, (batch, 3)), random.integers(0, 11, batch)


@pytest.mark.parametrize("hidden", [(5,), (7, 6)])
def test_gradient_equals_central_finite_differences(hidden):
    model = _small(hidden, dtype=np.float64)
    tokens, targets = _rows(5)
    tokens[0] = 2  # One token three times in a row: its gradients have to add up.
    model.forward(tokens, targets)
    gradient = model.backward().copy()
    expected, width = np.empty_like(gradient), 1e-5
    for index in range(model.parameters.size):
        kept = model.parameters[index]
        model.parameters[index] = kept + width
        above = model.forward(tokens, targets)
        model.parameters[index] = kept - width
        below = model.forward(tokens, targets)
        model.parameters[index] = kept
        expected[index] = (above - below) / (2 * width)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-9)
    assert np.abs(gradient).max() > 0.01


def test_float32_gradient_agrees_with_float64():
    rows = _rows(8)
    gradients = []
    for dtype in (np.float32, np.float64):
        model = _small(dtype=dtype)
        model.parameters[:] = _small().parameters
        model.forward(*rows)
        gradients.append(model.backward())
    assert gradients[0].dtype == np.float32
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_first_loss_is_close_to_a_uniform_guess():
    assert _small().forward(*_rows(200)) == pytest.approx(np.log(11), abs=0.1)


def test_loss_of_zero_parameters_is_exactly_uniform():
    model = _small(dtype=np.float64)
    model.parameters[:] = 0
    assert model.forward(*_rows(9)) == pytest.approx(np.log(11), rel=1e-14)


def test_huge_logits_do_not_overflow():
    model = _small()
    model.parameters *= 1e4
    assert np.isfinite(model.forward(*_rows(9)))
    assert np.isfinite(model.backward()).all()


def test_loss_falls_over_fifty_steps():
    model = _small(hidden=(32,))
    adam, rows = Adam(model.parameters.size, learning_rate=1e-2), _rows(32)
    losses = []
    for _ in range(50):
        losses.append(model.forward(*rows))
        adam.update(model.parameters, model.backward())
    assert losses[-1] < 0.5 * losses[0]


def test_seed_determines_the_result():
    runs = []
    for seed in (3, 3, 4):
        model = _small(seed=seed)
        adam = Adam(model.parameters.size)
        for step in range(5):
            model.forward(*_rows(16, seed=step))
            adam.update(model.parameters, model.backward())
        runs.append(model.parameters.tobytes())
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("shards", [2, 3, 5])
def test_mean_of_shard_gradients_is_the_batch_gradient(shards):
    model = _small(dtype=np.float64)
    tokens, targets = _rows(30)
    whole_loss = model.forward(tokens, targets)
    whole = model.backward().copy()
    losses, gradients = [], []
    for part_tokens, part_targets in zip(np.split(tokens, shards), np.split(targets, shards), strict=True):
        losses.append(model.forward(part_tokens, part_targets))
        gradients.append(model.backward().copy())
    assert np.mean(losses) == pytest.approx(whole_loss, rel=1e-12)
    np.testing.assert_allclose(np.mean(gradients, axis=0), whole, rtol=1e-10, atol=1e-14)


def test_message_is_the_gradient_followed_by_the_extras():
    model = _small(extras=2)
    model.extras[:] = 5, 6
    model.forward(*_rows(4))
    gradient = model.backward()
    assert gradient is model.gradient
    assert np.shares_memory(gradient, model.message)
    np.testing.assert_array_equal(model.message, np.concatenate([gradient, [5, 6]]))


def test_backward_needs_a_forward_each_time():
    model = _small()
    with pytest.raises(RuntimeError):
        model.backward()
    model.forward(*_rows(4))
    model.backward()
    with pytest.raises(RuntimeError):
        model.backward()


def test_wrong_shapes_are_refused():
    tokens, targets = _rows(4)
    with pytest.raises(ValueError):
        _small().forward(tokens[:, :2], targets)
    with pytest.raises(ValueError):
        _small().forward(tokens, targets[:3])


def test_flops_against_a_count_by_hand():
    # Layers 3·2 → 4 → 5 over 10 rows. Forward: 2·10·6·4 = 480 and 2·10·4·5 = 400. Backward is twice that.
    model = Model(Sizes(vocabulary=5, context=3, embedding=2, hidden=(4,), batch=10))
    assert model.flops_per_step() == 880 + 2 * 880
    # One more layer of 4 → 3 in between: 480 + 2·10·4·3 + 2·10·3·5 = 480 + 240 + 300.
    model = Model(Sizes(vocabulary=5, context=3, embedding=2, hidden=(4, 3), batch=10))
    assert model.flops_per_step() == 3 * 1020


def test_measured_peak_is_above_the_models_own_rate():
    sizes = Sizes()
    model = Model(sizes)
    random = np.random.default_rng(0)
    rows = random.integers(0, 128, (sizes.batch, sizes.context)), random.integers(0, 128, sizes.batch)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        model.forward(*rows)
        model.backward()
        seconds.append(time.perf_counter() - start)
    rate = model.flops_per_step() / min(seconds)
    # Half as much again, since the two measurements fall on different moments of a shared machine, and again where
    # another process had the core.
    assert any(rate < 1.5 * measured_peak_flops_per_second() for _ in range(10))


def test_default_sizes_stay_below_a_megabyte():
    sizes = Sizes()
    model = Model(sizes)
    # 128·16 of embedding, then 256·256 + 256 twice, then 256·128 + 128.
    assert model.parameters.size == 2048 + 2 * 65792 + 32896
    assert model.parameters.nbytes < 1_000_000


def test_adam_against_numbers_worked_by_hand():
    # β₁ = 0.5, β₂ = 0.75, learning rate 0.1, ε = 1, so that every figure can be written down.
    adam = Adam(1, learning_rate=0.1, beta1=0.5, beta2=0.75, epsilon=1.0, dtype=np.float64)
    parameters = np.array([2.0])
    # Update 1, g = 4: m = 2, v = 4; m̂ = 2 / 0.5 = 4, v̂ = 4 / 0.25 = 16; step 0.1 · 4 / (4 + 1) = 0.08.
    adam.update(parameters, np.array([4.0]))
    assert parameters[0] == pytest.approx(1.92, rel=1e-14)
    # Update 2, g = -2: m = 1 - 1 = 0, v = 3 + 1 = 4; m̂ = 0: the parameter stays.
    adam.update(parameters, np.array([-2.0]))
    assert parameters[0] == pytest.approx(1.92, rel=1e-14)
    # Update 3, g = 7: m = 3.5, v = 3 + 12.25 = 15.25; m̂ = 3.5 / 0.875 = 4, v̂ = 15.25 / 0.578125 = 26.378…
    adam.update(parameters, np.array([7.0]))
    assert parameters[0] == pytest.approx(1.92 - 0.1 * 4 / (np.sqrt(15.25 / 0.578125) + 1), rel=1e-14)
    assert adam.updates == 3


def test_adam_leaves_the_gradient_alone():
    gradient = np.array([1, -2, 3], np.float32)
    Adam(3).update(np.zeros(3, np.float32), gradient)
    np.testing.assert_array_equal(gradient, [1, -2, 3])


def test_adam_continues_from_its_state_bit_by_bit():
    random = np.random.default_rng(0)
    gradients = random.standard_normal((6, 20)).astype(np.float32)
    straight, first, second = (np.ones(20, np.float32) for _ in range(3))
    adam, before, after = Adam(20), Adam(20), Adam(20)
    for gradient in gradients:
        adam.update(straight, gradient)
    for gradient in gradients[:3]:
        before.update(first, gradient)
    after.load({name: array.copy() for name, array in before.state().items()})
    second[:] = first
    for gradient in gradients[3:]:
        after.update(second, gradient)
    assert second.tobytes() == straight.tobytes()
    with pytest.raises(ValueError):
        Adam(21).load(adam.state())
