"""GRPO: groups of completions are sampled from the model that is trained, rewarded, and learned from in one step."""

import sys

import torch
import torch.nn.functional as F
from support.programs.small_gpt import GPT
from support.programs.stopwatch import Stopwatch

watch = Stopwatch()
VOCABULARY, PROMPT, COMPLETION, GROUP, STEPS = 32, 8, 24, 8, 20


@torch.no_grad()
def generate(model, prompts):
    model.eval()
    tokens = prompts
    for _ in range(COMPLETION):
        probabilities = F.softmax(model(tokens)[0][:, -1], dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
    model.train()
    return tokens


def logprobs_of(model, tokens):
    logits = model(tokens[:, :-1])[0]
    return F.log_softmax(logits, dim=-1).gather(-1, tokens[:, 1:, None])[:, PROMPT - 1 :, 0]


def reward_of(completion):
    """Even tokens are good."""
    return sum(1.0 for token in completion.tolist() if token % 2 == 0) / COMPLETION


def main():
    torch.manual_seed(12)
    model = GPT(VOCABULARY, PROMPT + COMPLETION, kernel_seconds=0.05)
    optimizer, outputs = torch.optim.AdamW(model.parameters(), lr=3e-4), []
    for _step in range(STEPS):
        with watch("rollout"):
            prompts = torch.randint(0, VOCABULARY, (2, PROMPT)).repeat_interleave(GROUP, 0)
            tokens = generate(model, prompts)
            with torch.no_grad():
                old = logprobs_of(model, tokens)
            rewards = torch.tensor([reward_of(row[PROMPT:]) for row in tokens]).view(2, GROUP)
            advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        with watch("compute"):
            ratio = (logprobs_of(model, tokens) - old).exp()
            loss = -(ratio * advantages.view(-1, 1)).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        watch.step()
        outputs.extend([loss.item(), rewards.mean().item()])
    watch.write(sys.argv[1], model, outputs)


if __name__ == "__main__":
    main()
