"""From the start of the processes to the first step."""

from goodput.account.slow_ranks.peers import peers_text
from goodput.account.states import INDEX

STATE = "startup"
WAIT_SHARE_MIN = 0.5  # of the longest startup
ADVICE = (
    "Reach the first step sooner: import less, build the dataset index once and cache it, start the loader's "
    "workers early."
)


def advise(account) -> str:
    """Where the ranks waited for each other for half of the longest startup, that is what to change."""
    peers = account.peers
    longest = max((states[INDEX[STATE]] for states in account.of("states")), default=0)
    if peers is None or peers.waited_ns < WAIT_SHARE_MIN * longest:
        return ADVICE
    return (
        f"{peers_text(peers)[0].upper()}{peers_text(peers)[1:]}. Start the ranks at the same time, and look at what the "
        "last one did before it came (its host's image, imports, scheduling); a rank that never comes has failed or "
        "has another address of the rendezvous."
    )
