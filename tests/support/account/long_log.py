"""A run log of many steps."""

from __future__ import annotations

import json


def one(time: float, rank: int, attempt: int, step: int, seconds: float, waited: float) -> str:
    return json.dumps(
        {
            "kind": "step",
            "time": time,
            "rank": rank,
            "attempt": attempt,
            "step": step,
            "seconds": seconds,
            "phases": {"forward": seconds - 50, "communication": waited},
        }
    )


def long_log(steps: int) -> list[str]:
    """Two ranks, 100 s a step, so that the file is much longer than ten minutes; one restart, one rewind."""
    lines = ['{"kind":"run","time":0,"run":"r1","world_size":2}']
    for rank in (0, 1):
        lines.append(f'{{"kind":"attempt","time":0,"rank":{rank},"attempt":1}}')
        for step in range(steps):
            index = step if step < steps // 2 else step - 3
            lines.append(one(100 * (step + 1), rank, 1, index, 100, 10 + step % 7 + 3 * rank))
        begin = 100 * steps + 5000
        lines.append(
            f'{{"kind":"attempt","time":{begin},"rank":{rank},"attempt":2,"resume_step":{steps - 9}}}'
        )
        lines += [
            one(begin + 100 * (i + 1), rank, 2, steps - 8 + i, 90, 20 + i % 5 + rank) for i in range(steps)
        ]
    lines.append(f'{{"kind":"run_end","time":{begin + 100 * steps}}}')
    return sorted(lines, key=lambda x: json.loads(x)["time"])
