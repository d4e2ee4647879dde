"""PPO in one file: the agent that is trained plays in a slow environment, then learns in epochs of minibatches."""

import sys
import time

import numpy as np
import torch
from support.programs.kernels import Kernels
from support.programs.stopwatch import Stopwatch
from torch import nn, optim
from torch.distributions import Categorical

watch = Stopwatch()
ENVS, STEPS, ITERATIONS, EPOCHS, MINIBATCH = 4, 48, 3, 2, 48


class Environment:
    """Poles to balance, one step of which takes 3 ms."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.state = self.random.normal(size=(ENVS, 16))

    def step(self, action):
        time.sleep(0.003)
        self.state = 0.9 * self.state + self.random.normal(size=(ENVS, 16)) * (1 + action[:, None])
        return self.state, -np.abs(self.state).mean(1), self.random.random(ENVS) < 0.02


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)
        )
        self.actor = nn.Sequential(
            nn.Linear(16, 256), nn.Tanh(), Kernels(0.03), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 3)
        )

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probabilities = Categorical(logits=self.actor(x))
        if action is None:
            action = probabilities.sample()
        return action, probabilities.log_prob(action), probabilities.entropy(), self.critic(x)


def advantages_of(rewards, values, dones, next_value, next_done):
    advantages, last = torch.zeros_like(rewards), 0
    for t in reversed(range(STEPS)):
        following, ended = (next_value, next_done) if t == STEPS - 1 else (values[t + 1], dones[t + 1])
        delta = rewards[t] + 0.99 * following * (1 - ended) - values[t]
        advantages[t] = last = delta + 0.99 * 0.95 * (1 - ended) * last
    return advantages


def main():
    torch.manual_seed(1)
    np.random.seed(1)
    envs, agent = Environment(1), Agent()
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs, actions = torch.zeros(STEPS, ENVS, 16), torch.zeros(STEPS, ENVS)
    logprobs, rewards, dones, values = (torch.zeros(STEPS, ENVS) for _ in range(4))
    next_obs, next_done, outputs = torch.tensor(envs.state).float(), torch.zeros(ENVS), []
    for _iteration in range(ITERATIONS):
        with watch("rollout"):
            for step in range(STEPS):
                obs[step], dones[step] = next_obs, next_done
                with torch.no_grad():
                    action, logprob, _, value = agent.get_action_and_value(next_obs)
                    values[step] = value.flatten()
                actions[step], logprobs[step] = action, logprob
                state, reward, done = envs.step(action.numpy())
                rewards[step] = torch.tensor(reward)
                next_obs, next_done = torch.tensor(state).float(), torch.tensor(done).float()
            with torch.no_grad():
                next_value = agent.get_value(next_obs).flatten()
                advantages = advantages_of(rewards, values, dones, next_value, next_done)
                returns = advantages + values
        b_obs, b_actions, b_logprobs = obs.reshape(-1, 16), actions.reshape(-1), logprobs.reshape(-1)
        b_advantages, b_returns, b_inds = advantages.reshape(-1), returns.reshape(-1), np.arange(STEPS * ENVS)
        for _epoch in range(EPOCHS):
            np.random.shuffle(b_inds)
            for start in range(0, len(b_inds), MINIBATCH):
                with watch("loader"):
                    mb = b_inds[start : start + MINIBATCH]
                    mb_obs, mb_actions = b_obs[mb], b_actions[mb]
                with watch("compute"):
                    _, new, entropy, value = agent.get_action_and_value(mb_obs, mb_actions)
                    ratio = (new - b_logprobs[mb]).exp()
                    mb_advantages = (b_advantages[mb] - b_advantages[mb].mean()) / (
                        b_advantages[mb].std() + 1e-8
                    )
                    pg_loss = torch.max(-mb_advantages * ratio, -mb_advantages * ratio.clamp(0.8, 1.2)).mean()
                    v_loss = 0.5 * ((value.flatten() - b_returns[mb]) ** 2).mean()
                    loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                    optimizer.step()
                watch.step()
                outputs.append(loss.item())
    watch.write(sys.argv[1], agent, outputs)


if __name__ == "__main__":
    main()
