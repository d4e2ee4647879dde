"""Rollouts: the model makes the data of its next update."""

STATE = "rollout"
ADVICE = (
    "Make rollouts cheaper: more environments or prompts in one batch, environments in processes of their own, an inference "
    "engine for generation; or generate on other devices while the last batch trains."
)
