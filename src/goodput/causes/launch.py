"""The device idle inside compute because the host could not feed it."""

STATE = "launch"


def advise(account) -> str:
    return (
        "Fuse small kernels: torch.compile or CUDA graphs, larger micro-batches, less Python between kernels."
    )
