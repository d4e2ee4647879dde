"""Where a rank's main thread was while it was in no phase: sampled stacks in one small file beside its page.

`places` reads the raw output of `py-spy record`, `write` stores the counts as `<page>.stacks.json` and `read` checks them,
since anybody may write where pages lie.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter

from goodput.wire.identity import clean_text

SUFFIX = ".stacks.json"
BYTES_MAX, PLACES_MAX, PLACE_CHARACTERS_MAX = 16 << 10, 16, 160
# A stack with a frame in one of these is in a phase of automatic instrumentation.
IN_A_PHASE = (
    *(
        "torch/nn/modules/module.py",
        "torch/_tensor.py",
        "torch/autograd/",
        "torch/optim/",
        "torch/distributed/",
    ),
    *("torch/nn/utils/clip_grad.py", "torch/utils/data/dataloader.py", "torch/serialization.py", "goodput/"),
)
LIBRARIES = ("torch/", "numpy/", "site-packages/", "lib/python3", "<frozen", "<")
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>[^()]+):(?P<line>\d+)\)$")


def places(raw: str) -> Counter[str]:
    """Samples of the main thread outside phases by the innermost line of the user's own: "FILE:FUNCTION, line N"."""
    found: Counter[str] = Counter()
    for text in raw.splitlines():
        stack, _, count = text.rpartition(" ")
        thread, *frames = stack.split(";")
        if "MainThread" not in thread or not count.isdigit() or any(part in stack for part in IN_A_PHASE):
            continue
        matches = [match for match in map(_FRAME.match, frames) if match]
        own = [match for match in matches if not match["file"].startswith(LIBRARIES)] or matches
        if own:
            name = own[-1]["file"].rpartition("/")[2]
            place = f"{name}:{own[-1]['function']}, line {own[-1]['line']}"
            found[clean_text(place, PLACE_CHARACTERS_MAX)] += int(count)
    return found


def write(page_path: str, counts: Counter[str], reason: str = "") -> None:
    """Replace the file beside this page; `reason` says why there are no samples. Raises OSError."""
    directory, name = os.path.split(page_path)
    draft = os.path.join(directory, f".{os.getpid()}.stacks.{name}")
    text = json.dumps(
        {"samples": counts.total(), "places": dict(counts.most_common(PLACES_MAX)), "reason": reason}
    )
    with open(draft, "w") as file:
        file.write(text)
    os.replace(draft, page_path + SUFFIX)


def read(page_path: str) -> tuple[dict[str, int], int, str]:
    """(samples by place, all samples, reason why there are none); nothing for a missing or invalid file."""
    try:
        fd = os.open(page_path + SUFFIX, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            kind = os.fstat(fd)
            if not stat.S_ISREG(kind.st_mode) or kind.st_size > BYTES_MAX:
                return {}, 0, ""
            found = json.loads(file.read(BYTES_MAX))
        counts = {
            clean_text(place, PLACE_CHARACTERS_MAX): count
            for place, count in list(found["places"].items())[:PLACES_MAX]
            if type(count) is int and 0 < count < 1 << 40
        }
        total = found["samples"]
        total = max(total if type(total) is int and total < 1 << 40 else 0, sum(counts.values()))
        return counts, total, clean_text(found["reason"], PLACE_CHARACTERS_MAX)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, 0, ""
