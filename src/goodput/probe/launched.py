"""The probe under torchrun: one rank of each node probes its node, then all ranks take part in an all-reduce."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace

from goodput.probe import PARTS, allreduce, kept, node
from goodput.probe.ranks import Ranks


def is_launched() -> bool:
    """Whether a launcher started this process as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and "RANK" in os.environ


def probe(options: node.Options, progress: Callable[[str], None]) -> list[dict] | None:
    """The probes of all nodes on rank 0, None on the others. Each node's is kept on it.

    Raises RuntimeError of torch.distributed if a rank is missing.
    """
    document = None
    if os.environ.get("LOCAL_RANK", "0") == "0":
        parts = tuple(part for part in options.parts if part != "allreduce")
        document = node.probe(replace(options, parts=parts), progress)
    import torch
    import torch.distributed as dist

    ranks = Ranks()
    documents: list = [None] * ranks.size
    with ranks.group("documents", "gloo"):
        dist.all_gather_object(documents, document)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if "allreduce" in options.parts:
        progress("measuring all-reduce over all ranks")
        figures = [asdict(figure) for figure in allreduce.over_group(ranks, gpus)]
        for one in (document, *documents):
            if one is not None:
                one["figures"] += figures
    ranks.leave()
    if document is not None:
        kept.save(document, is_whole=set(options.parts) == set(PARTS))
    return [one for one in documents if one is not None] if ranks.rank == 0 else None
