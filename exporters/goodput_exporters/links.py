"""The links of this node: which went down or came back, which flap, and where much is sent again.

In: sysfs and procfs roots; `look()` now and then. Out: gpu.Event records, each once: link_down, link_up, link_flap (it
went and came between two looks) and retransmits (more than so many in a window, told again only after a quiet one). A
look reads three small files for each interface with hardware behind it and each RDMA port, about 0.1 ms.

What was never up is not down: many ports have no cable. It does not know who uses a link.

    links = Links(settings); events = links.look()
"""

from __future__ import annotations

import os

from goodput_exporters import infiniband_parse as parse
from goodput_exporters.collectors import CollectorError, ParseError, Settings, parse_count, read_text
from goodput_exporters.gpu import Event
from goodput_exporters.sysfs import label, listing

LINKS_MAX = 128
WINDOW_NS = 10 * 10**9
# TCP: of what was sent, and at least so many a second. RDMA: a port's, in a second.
TCP_SHARE, TCP_PER_SECOND, RDMA_PER_SECOND = 0.01, 100, 100
_RETRANSMITS = [name for name, (series, _, _) in parse.HARDWARE.items() if series == parse.RETRANSMITS]


class Links:
    def __init__(self, settings: Settings):
        self._settings = settings
        self._net = os.path.join(settings.sysfs, "class/net")
        self._rdma = os.path.join(settings.sysfs, "class/infiniband")
        self._up: dict[str, bool] = {}
        self._changes: dict[str, int] = {}
        self._counted: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._stormy: set[str] = set()

    def look(self) -> list[Event]:
        """What happened since the last look. A file that cannot be read says nothing."""
        events: list[Event] = []
        now_ns = self._settings.monotonic_ns()
        for name in self._names(self._net):
            path = os.path.join(self._net, name)
            if os.path.exists(f"{path}/device"):
                changes = _number(f"{path}/carrier_changes")
                self._state(events, label(name), _number(f"{path}/carrier"), 1, changes, "warning")
        for device in self._names(self._rdma):
            for port in self._names(os.path.join(self._rdma, device, "ports")):
                path = os.path.join(self._rdma, device, "ports", port)
                at = f"{label(device)}/{label(port)}"
                downs = _number(f"{path}/counters/link_downed")
                self._state(events, at, _state(f"{path}/state"), parse.ACTIVE, downs, "critical")
                counts = [_number(f"{path}/hw_counters/{name}") for name in _RETRANSMITS]
                self._storm(events, at, now_ns, (sum(filter(None, counts)),))
        segments = _segments(os.path.join(self._settings.procfs, "net/snmp"))
        if segments is not None:
            self._storm(events, "tcp", now_ns, segments)
        return events

    def _names(self, path: str) -> list[str]:
        try:
            return [name for name in listing(path) or [] if name != "lo"][:LINKS_MAX]
        except CollectorError:
            return []

    def _state(
        self, events, name: str, state: int | None, good: int, changes: int | None, severity: str
    ) -> None:
        """`changes` is a counter that grows when the link goes down, and where it is so also when it comes back."""
        before, known = self._up.get(name), self._changes.get(name)
        if changes is not None:
            self._changes[name] = changes
        if state is None or (before is None and state != good):
            return
        up = self._up[name] = state == good
        flapped = before is not None and None not in (known, changes) and changes > known
        if before and not up:
            events.append(self._event("link_down", name, severity, "the link is down"))
        elif before is False and up:
            events.append(self._event("link_up", name, "info", "the link is up again"))
        elif up and flapped:
            events.append(self._event("link_flap", name, severity, "the link was down between two looks"))

    def _storm(self, events, name: str, now_ns: int, counts: tuple[int, ...]) -> None:
        """`counts` are what was sent again and, for TCP, what was sent."""
        since_ns, before = self._counted.get(name, (now_ns, counts))
        self._counted.setdefault(name, (now_ns, counts))
        seconds = (now_ns - since_ns) / 1e9
        if now_ns - since_ns < WINDOW_NS:
            return
        self._counted[name] = now_ns, counts
        again = (counts[0] - before[0]) / seconds
        stormy = again > RDMA_PER_SECOND
        text = f"{again:.0f} a second sent again"
        if len(counts) > 1:
            share = again * seconds / max(counts[1] - before[1], 1)
            stormy = again > TCP_PER_SECOND and share > TCP_SHARE
            text += f", {100 * share:.1f} % of what was sent"
        if stormy and name not in self._stormy:
            events.append(self._event("retransmits", name, "warning", text))
        (self._stormy.add if stormy else self._stormy.discard)(name)

    def _event(self, kind: str, name: str, severity: str, text: str) -> Event:
        return Event(kind, name, self._settings.unix_ns(), severity=severity, text=text)


def _number(path: str) -> int | None:
    try:
        text = read_text(path)
        return None if text is None else parse_count(text.strip())
    except (CollectorError, ParseError):
        return None


def _state(path: str) -> int | None:
    try:
        text = read_text(path)
        return None if text is None else parse.parse_state(text)
    except (CollectorError, ParseError):
        return None


def _segments(path: str) -> tuple[int, int] | None:
    """TCP segments sent again, and sent."""
    try:
        lines = [line.split() for line in (read_text(path) or "").splitlines() if line.startswith("Tcp:")]
        found = dict(zip(lines[0], lines[1], strict=True))
        return parse_count(found["RetransSegs"]), parse_count(found["OutSegs"])
    except (CollectorError, ParseError, IndexError, KeyError, ValueError):
        return None
