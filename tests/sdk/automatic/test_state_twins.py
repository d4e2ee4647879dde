"""What detection knows between two calls is the same compiled and in Python, and only its own methods change it."""

from __future__ import annotations

import gc
import random
import weakref

import pytest

from goodput.rank_page import page
from goodput.sdk.automatic import hooks
from goodput.sdk.recorder import plain, plain_training
from goodput.sdk.recorder.hot_path import TrainingState
from goodput.sdk.recorder.recorder import Recorder
from goodput.sdk.recorder.training_calls import BACKWARD, FORWARD, NOTHING

assert hooks.FORWARD  # The hooks give the compiled classes the constants of the page.
fast = pytest.importorskip("goodput.sdk.recorder._fast")
SEEDS, CALLS = 20, 400
KINDS = ("claim", "batch", "forward", "forward", "backward", "none")
NONE, FORWARD_WORD = page.W_TOTALS, page.W_TOTALS + page.PHASES.index("forward")
WORDS = [NONE, FORWARD_WORD, NONE + 4, NONE + 9]


class Thing:
    """An optimizer or an iterator."""


THINGS = [Thing() for _ in range(3)]
REFERENCES = [weakref.ref(thing) for thing in THINGS]
FLAG, NUMBER, THING = (False, True), (0, 1, 5, 1000), THINGS
# The methods of each part of the state, and the arguments that each may get.
CALLS_OF = {
    "": {
        "step_began": (NUMBER,),
        "step_dropped": (),
        "step_ended": (),
        "set_routine": (FLAG,),
        "train": (),
        "enter_call": (),
        "leave_call": (),
        "forward_ended": (FLAG, FLAG),
        "backward_began": (),
        "backward_ended": (),
        "forget_last_call": (),
        "reducer_created": (),
        "evaluation_began": (),
        "evaluation_ended": (),
        "set_anchor": (REFERENCES,),
        "optimizer_began": (THING,),
        "nested_step_began": (),
        "nested_step_ended": (),
        "optimizer_ended": (),
        "optimizer_stepped": (),
        "set_preparing": (FLAG,),
        "set_unhooked_steps": (FLAG,),
        "set_other_work": (NUMBER,),
        "page_opened": (),
        "thread_changed": (),
        "installed": (),
        "training_ended": (),
        "removed": (),
    },
    "fetches": {
        "begin": (),
        "end": (),
        "batch_came": (NUMBER,),
        "add_samples": (NUMBER,),
        "take_samples": (),
        "step_ended": (),
        "set_iterator": ([None, *REFERENCES], FLAG),
        "set_read_ahead": (FLAG,),
        "set_sampling": (FLAG, FLAG),
        "skips": (THING,),
        "skipped": (THING, NUMBER, FLAG),
        "measured": (THING, NUMBER),
        "forget_iterator": (),
        "page_opened": (),
        "thread_changed": (),
    },
    "gaps": {
        "claim": (WORDS,),
        "claim_batch": (),
        "drop_claim": (),
        "step_ended": (),
        "set_batch_word": ((0, WORDS[3]),),
        "page_opened": (),
        "forget": (),
    },
}
FIELDS_ELSEWHERE = {"clock", "fetches", "gaps"}


def twins() -> list:
    """The state and its clock, compiled and in Python."""
    compiled, python = fast.Clock(), plain.Clock()
    return [
        (fast.TrainingState(compiled), compiled),
        (plain_training.TrainingState(python), python),
    ]


def part_of(state, name: str):
    return getattr(state, name) if name else state


def fields(state) -> dict:
    """All fields of a state and its parts; a weak reference as what it refers to."""
    found = {}
    for part in CALLS_OF:
        one = part_of(state, part)
        for name in dir(one):
            if name.startswith("_") or name in CALLS_OF[part] or name in FIELDS_ELSEWHERE:
                continue
            value = getattr(one, name)
            if not callable(value) or name in ("anchor", "optimizer", "iterator"):
                found[part, name] = value() if callable(value) else value
    return found


def test_every_method_is_called_here():
    state = twins()[1][0]
    for part, calls in CALLS_OF.items():
        one = part_of(state, part)
        methods = {name for name in vars(type(one)) if callable(getattr(type(one), name))}
        methods = {name for name in methods if not name.startswith("_")}
        assert methods - set(calls) == (
            {"word_before", "forward_ended", "backward_ended"} if part == "gaps" else set()
        )


@pytest.mark.parametrize("part", [*CALLS_OF, None])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_states_are_the_same_after_any_calls(seed, part):
    """Calls of one part, which meets more of its cases, or of all."""
    rng, pair, only = random.Random(seed), twins(), part
    for _ in range(CALLS):
        part = rng.choice(list(CALLS_OF)) if only is None else only
        method, choices = rng.choice(list(CALLS_OF[part].items()))
        arguments = [rng.choice(each) for each in choices]
        answers = [getattr(part_of(state, part), method)(*arguments) for state, _ in pair]
        assert answers[0] == answers[1], (part, method, arguments)
        assert fields(pair[0][0]) == fields(pair[1][0]), (part, method, arguments)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_gaps_are_charged_alike(seed):
    """Phases with any time before them, after passes of any length, with and without a claim."""
    rng, pair, now_ns = random.Random(seed), twins(), 1000
    for _ in range(CALLS):
        lengths, kind = rng.randrange(100), rng.choice(KINDS)
        before_ns, total, word = rng.randrange(40), rng.choice(WORDS), rng.choice(WORDS)
        follows, is_batch, batch_word = rng.random() < 0.8, rng.random() < 0.5, rng.choice((0, WORDS[3]))
        found = []
        for state, clock in pair:
            clock.last_ns, clock.length = now_ns, lengths
            if kind == "claim":
                state.gaps.claim(word)
            elif kind == "batch":
                state.gaps.set_batch_word(batch_word)
                found.append(state.gaps.claim_batch())
            elif kind == "forward":
                state.forward_ended(follows, is_batch)
                state.gaps.claim(word)
            elif kind == "backward":
                state.backward_ended()
                state.gaps.claim(word)
            found.append(state.gaps.word_before(clock, total, now_ns + before_ns))
        assert found[: len(found) // 2] == found[len(found) // 2 :]
        assert fields(pair[0][0]) == fields(pair[1][0])
        now_ns += before_ns


def test_last_call_is_named_as_in_c():
    for state, _ in twins():
        seen = [state.after]
        state.forward_ended(False, False)
        seen.append(state.after)
        state.backward_ended()
        assert [*seen, state.after] == [NOTHING, FORWARD, BACKWARD]


def test_no_other_code_writes_a_compiled_field():
    state = twins()[0][0]
    for part, name in fields(state):
        with pytest.raises(AttributeError):
            setattr(part_of(state, part), name, getattr(part_of(state, part), name))


def test_claim_in_an_open_phase_is_dropped():
    """Only the time before an outermost phase is charged to another one."""
    for module, (state, clock) in zip((fast, plain), twins(), strict=True):
        clock.words = page.private_words()
        clock.thread = plain.get_ident()
        histogram = page.W_HISTOGRAMS
        clock.columns = len(page.PHASES)
        outer = module.Phase(clock, "checkpoint", 9, WORDS[3], histogram)
        outer.__enter__()
        state.gaps.claim(FORWARD_WORD)
        assert state.gaps.word_before(clock, WORDS[2], clock.last_ns + 5) == WORDS[3]
        assert (state.gaps.claimed, state.gaps.between_ns) == (NONE, 0)


def test_recorder_and_its_state_are_freed_together():
    """Each refers to the other."""
    recorder = Recorder()
    state = TrainingState(recorder)
    recorder.set_training(state)
    state.set_anchor(weakref.ref(THINGS[0]))
    gone = weakref.ref(recorder)
    del recorder, state
    gc.collect()
    assert gone() is None


def test_state_follows_page_and_thread():
    """Another page counts its own passes; another thread begins without an open evaluation."""
    recorder = Recorder()
    recorder.open(page.private_words(), 1)
    state = TrainingState(recorder)
    recorder.set_training(state)
    state.backward_began()
    state.backward_ended()
    state.evaluation_began()
    state.fetches.batch_came(3)
    recorder.open(page.private_words(), 1)
    assert (state.micro_batches, state.fetches.samples, state.evaluating) == (0, 0, True)
    recorder.take_over()
    assert not state.evaluating and not state.fetches.fetched
