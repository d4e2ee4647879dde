"""The device is idle during compute because the host launches work too slowly."""

from statistics import median

from goodput.account.states import INDEX
from goodput.account.text import on

STATE = "launch"
_LAUNCH, _PRODUCTIVE = INDEX[STATE], INDEX["productive"]
# A rank stands out if this share of its compute, and this multiple of the others' median, is idle.
ALONE_RATIO_MIN, ALONE_SHARE_MIN = 2, 0.1


def advise(account) -> str:
    gpu_ns = account.gpu_ns()
    share = gpu_ns[_LAUNCH] / (gpu_ns[_LAUNCH] + gpu_ns[_PRODUCTIVE])
    head = f"{100 * share:.0f} % of compute time the GPU had nothing to run (estimate)"
    return f"{head}: {_alone(account) or ADVICE[0].lower() + ADVICE[1:]}"


ADVICE = (
    "Use CUDA graphs, torch.compile, a larger batch, fewer tiny kernels; no .item() or synchronize() in the loop; "
    "pin each rank to cores of its GPU's NUMA node."
)


def _alone(account) -> str:
    """Name the rank that stands out. All ranks run the same code, so its node is the cause."""
    shares = sorted(
        (states[_LAUNCH] / spent, rank, host)
        for states, rank, host in zip(*map(account.of, ("states", "rank", "host")), strict=True)
        if (spent := states[_LAUNCH] + states[_PRODUCTIVE])
    )
    most, rank, host = shares.pop()
    usual = median(share for share, *_ in shares) if shares else most
    if most < ALONE_SHARE_MIN or most < ALONE_RATIO_MIN * usual:
        return ""
    return (
        f"rank {rank}{on(host)} in {100 * most:.0f} %, the others in {100 * usual:.0f} % (median). Check that "
        "node's CPU load and clock, and pin the rank to cores of its GPU's NUMA node."
    )
