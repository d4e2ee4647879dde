"""From the start of the processes to the first step."""

STATE = "startup"
ADVICE = (
    "Reach the first step sooner: import less, build the dataset index once and cache it, start the loader's "
    "workers early."
)
