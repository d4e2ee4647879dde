"""Loops of reinforcement learning: rollouts before each update, beside evaluations that are none."""

import time

import torch
from support.frameworks.scripts.loop_variants.cases import Slow, batches, case, pause, sgd
from torch import nn


class Tokens(nn.Module):
    """A slow language model of 16 tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, tokens):
        time.sleep(0.006)
        return self.head(self.embed(tokens))


def update(model, optimizer, x, y) -> None:
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


@case
def proximal_policy_optimization():
    """Single observations through actor and critic with an environment's steps, then epochs of minibatches."""
    actor, critic = Slow(), Slow()
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.01)
    steps, seconds = 0, 0.0
    for _ in range(3):
        began, seen = time.perf_counter(), []
        for _ in range(8):
            x = torch.randn(1, 8)
            with torch.no_grad():
                seen.append((x, actor(x) + critic(x)))
            pause()
        seconds += time.perf_counter() - began
        for _ in range(2):
            for i in range(0, 8, 4):
                x, y = (torch.cat(parts) for parts in zip(*seen[i : i + 4], strict=True))
                (nn.functional.mse_loss(actor(x), y) + critic(x).square().mean()).backward()
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
    return {"steps": steps, "evaluation_seconds": 0, "rollout_seconds": seconds}


def generate(model, tokens):
    with torch.no_grad():
        for _ in range(10):
            choice = model(tokens)[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, choice], 1)
    pause()  # The reward.
    return tokens


def relative_policy_optimization(in_eval_mode, prompts):
    model = Tokens()
    optimizer, steps, seconds = sgd(model), 0, 0.0
    for prompt in prompts:
        began = time.perf_counter()
        model.train(not in_eval_mode)
        tokens = generate(model, prompt)
        model.train()
        seconds += time.perf_counter() - began
        for _ in range(2):
            nn.functional.cross_entropy(
                model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
            ).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    return {
        "steps": steps,
        "evaluation_seconds": 0,
        "rollout_seconds": seconds,
        "rollout_off": 0.004 * 2 * len(prompts),
    }


@case
def group_relative_policy_optimization():
    return relative_policy_optimization(False, [torch.randint(16, (4, 3)) for _ in range(4)])


@case
def generation_in_eval_mode():
    return relative_policy_optimization(True, [torch.randint(16, (4, 3)) for _ in range(4)])


@case
def generation_of_loaded_prompts():
    prompts = torch.utils.data.DataLoader(torch.randint(16, (16, 3)), batch_size=4)
    return relative_policy_optimization(False, prompts)


@case
def evaluation_between_rollouts():
    """A held-out set, in eval mode, after each second rollout and its updates."""
    model, held_out = Slow(), batches(12)
    optimizer, steps, rollouts, evaluations = sgd(model), 0, 0.0, 0.0
    for number in range(4):
        began = time.perf_counter()
        with torch.no_grad():
            seen = [(x, model(x)) for x in torch.randn(6, 1, 8)]
            pause()
        rollouts += time.perf_counter() - began
        for x, y in seen:
            update(model, optimizer, x, y)
            steps += 1
        if number % 2:
            began = time.perf_counter()
            model.eval()
            with torch.no_grad():
                for x, _ in held_out:
                    model(x)
                    pause()
            model.train()
            evaluations += time.perf_counter() - began
    return {"steps": steps, "evaluation_seconds": evaluations, "rollout_seconds": rollouts}


@case
def losses_estimated_before_the_first_step():
    """An evaluation in eval mode without a loader, before the first step and every third."""
    model = Slow()
    optimizer, steps, seconds = sgd(model), 0, 0.0
    for number in range(9):
        if number % 3 == 0:
            began = time.perf_counter()
            model.eval()
            with torch.no_grad():
                for _ in range(4):
                    model(torch.randn(4, 8))
            model.train()
            seconds += time.perf_counter() - began
        update(model, optimizer, torch.randn(4, 8), torch.randn(4, 1))
        steps += 1
    return {"steps": steps, "evaluation_seconds": seconds, "rollout_seconds": 0}


@case
def evaluation_in_training_mode():
    """Without gradients and without `eval()`, after steps only."""
    model = Slow()
    optimizer, steps, seconds = sgd(model), 0, 0.0
    for number in range(9):
        update(model, optimizer, torch.randn(4, 8), torch.randn(4, 1))
        steps += 1
        if number % 3 == 2:
            began = time.perf_counter()
            with torch.no_grad():
                for _ in range(4):
                    model(torch.randn(4, 8))
                    pause()
            seconds += time.perf_counter() - began
    return {"steps": steps, "evaluation_seconds": seconds, "rollout_seconds": 0}


def sampled_while_trained(sample, loader=True, first=True) -> dict:
    """Ordinary training that generates texts to look at: at the start, after some steps and after many."""
    model, text = Tokens(), torch.randint(16, (300, 9))
    optimizer, steps, seconds = torch.optim.SGD(model.parameters(), lr=0.01), 0, 0.0
    rows = torch.utils.data.DataLoader(text, batch_size=4) if loader else text.split(4)
    for number, batch in enumerate(rows):
        if number in ((0, 2, 4, 70) if first else (3, 5, 70)):
            began = time.perf_counter()
            model.eval()
            sample(model)
            model.train()
            seconds += time.perf_counter() - began
            pause(3)  # In no phase: the evaluation ended with `train()`.
        logits = model(batch[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return {"steps": steps, "evaluation_seconds": seconds, "rollout_seconds": 0}


def one_text(model):
    generate(model, torch.randint(16, (1, 3)))


@case
def texts_sampled_in_a_training():
    return sampled_while_trained(one_text, first=False)


@case
def texts_sampled_without_a_loader():
    return sampled_while_trained(one_text, loader=False, first=False)


@case
def texts_sampled_from_the_start_on():
    """The first before the first step, where rollouts begin."""
    return sampled_while_trained(one_text, loader=False)


@case
def texts_sampled_between_batches():
    """After a step and before the next batch is fetched, in rows as many and as long as those that are trained on."""
    model, seconds, steps = Tokens(), 0.0, 0
    optimizer = sgd(model)
    for batch in torch.utils.data.DataLoader(torch.randint(16, (24, 13)), batch_size=4):
        nn.functional.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        began = time.perf_counter()
        model.eval()
        generate(model, batch[:, :3])
        model.train()
        seconds += time.perf_counter() - began
    return {"steps": steps, "evaluation_seconds": seconds, "rollout_seconds": 0}


@case
def texts_with_a_cut_context():
    """Longer than the context, which has the length of the batches."""

    def sample(model):
        tokens = torch.randint(16, (4, 1))
        with torch.no_grad():
            for _ in range(14):
                tokens = torch.cat([tokens, model(tokens[:, -8:])[:, -1].argmax(-1, keepdim=True)], 1)

    return sampled_while_trained(sample, loader=False, first=False)


@case
def generation_with_a_cache():
    """The prompt, then one token at a time; what was generated is trained on in two halves."""
    model = Tokens()
    optimizer, steps, seconds = sgd(model), 0, 0.0
    for _ in range(4):
        began = time.perf_counter()
        tokens = step = torch.randint(16, (4, 3))
        with torch.no_grad():
            for _ in range(10):
                step = model(step)[:, -1].argmax(-1, keepdim=True)
                tokens = torch.cat([tokens, step], 1)
        pause()
        seconds += time.perf_counter() - began
        for half in tokens.split(2):
            logits = model(half[:, :-1])
            nn.functional.cross_entropy(logits.flatten(0, 1), half[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    return {"steps": steps, "evaluation_seconds": 0, "rollout_seconds": seconds}
