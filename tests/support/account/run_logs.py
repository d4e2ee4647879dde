"""Run logs that tests write."""

from __future__ import annotations

HEAD = b'{"kind":"run","time":0,"run":"r1"}\n{"kind":"attempt","time":0,"rank":0,"attempt":1}\n'


def step(time: float, index: int, rest: str = "") -> bytes:
    text = f'{{"kind":"step","time":{time},"rank":0,"attempt":1,"step":{index},"seconds":1{rest}}}\n'
    return text.encode()


BASE = HEAD + b"".join(step(i + 1, i) for i in range(5))
