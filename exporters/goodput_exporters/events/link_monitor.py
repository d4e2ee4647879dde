"""The links of this node: which went down or came back, which flap, and where much is sent again.

In: sysfs and procfs roots; `look()` now and then. Out: gpu.Event records, each once: link_down (a device that is gone
is down too), link_up, link_flap (it went and came between two looks) and retransmits (more than so many in a window,
told again only after a quiet one). A look takes about 0.1 ms for each interface with hardware behind it and each RDMA
port.

What was never up is not down: many ports have no cable. A counter that begins anew or was not there before has not
grown. What is gone is forgotten in time, so names that come and go cost no memory. It does not know who uses a link.

    links = Links(settings); events = links.look()
"""

from __future__ import annotations

import os
from typing import NamedTuple

from goodput_exporters.collector import CollectorError, ParseError, Settings, parse_count, read_text
from goodput_exporters.gpu.sample import Event
from goodput_exporters.system import infiniband as parse
from goodput_exporters.system.files import label, listing

LINKS_MAX = 128
GONE_MAX = 128
WINDOW_NS = 10 * 10**9
# TCP: of what was sent, and at least so many a second. RDMA: a port's, in a second.
TCP_SHARE, TCP_PER_SECOND, RDMA_PER_SECOND = 0.01, 100, 100
TCP, AGAIN, SENT = "tcp", "RetransSegs", "OutSegs"
_RETRANSMITS = {name for name, (series, _, _) in parse.HARDWARE.items() if series == parse.RETRANSMITS}


class Seen(NamedTuple):
    """A link at one look. `changes` grows when it goes down, and where it is so also when it comes back."""

    name: str
    up: bool | None
    changes: int | None
    severity: str


class Links:
    def __init__(self, settings: Settings):
        self._settings = settings
        self._net = os.path.join(settings.sysfs, "class/net")
        self._rdma = os.path.join(settings.sysfs, "class/infiniband")
        self._up: dict[str, bool] = {}  # of those that were up once
        self._changes: dict[str, int] = {}
        self._counted: dict[str, tuple[int, dict[str, int]]] = {}
        self._stormy: set[str] = set()
        # Severity by name, at the last look.
        self._here: dict[str, dict[str, str]] = {"ethernet": {}, "rdma": {}}
        self._gone: dict[str, None] = {}  # names of `_up`, oldest first

    def look(self) -> list[Event]:
        """What happened since the last look. A file that cannot be read says nothing."""
        events: list[Event] = []
        now_ns = self._settings.monotonic_ns()
        for kind, look in (("ethernet", self._interfaces), ("rdma", lambda: self._ports(events, now_ns))):
            try:
                seen = look()
            except CollectorError:
                continue  # A folder that cannot be listed does not say that what was in it is gone.
            for link in seen:
                self._state(events, link)
            self._miss(events, kind, {link.name: link.severity for link in seen})
        segments = _segments(os.path.join(self._settings.procfs, "net/snmp"))
        if segments is not None:
            self._storm(events, TCP, now_ns, segments)
        return events

    def here(self) -> dict[str, list[str]]:
        """What was there at the last look, by kind: ethernet, rdma, and tcp where the kernel counts it."""
        counted = [TCP] if TCP in self._counted else []
        return {kind: list(names) for kind, names in self._here.items()} | {"tcp": counted}

    def _interfaces(self) -> list[Seen]:
        paths = [os.path.join(self._net, name) for name in listing(self._net) or ()]
        # Those of containers, of which there may be hundreds, have no device.
        paths = [path for path in paths if os.path.exists(f"{path}/device")][:LINKS_MAX]
        return [_interface(path) for path in paths]

    def _ports(self, events: list[Event], now_ns: int) -> list[Seen]:
        seen: list[Seen] = []
        for device in listing(self._rdma) or ():
            for port in listing(os.path.join(self._rdma, device, "ports")) or ():
                if len(seen) < LINKS_MAX:
                    path = os.path.join(self._rdma, device, "ports", port)
                    seen.append(_port(path, f"{label(device)}/{label(port)}"))
                    self._storm(events, seen[-1].name, now_ns, _sent_again(f"{path}/hw_counters"))
        return seen

    def _state(self, events: list[Event], link: Seen) -> None:
        name, before, known = link.name, self._up.get(link.name), self._changes.get(link.name)
        if link.changes is not None:
            self._changes[name] = link.changes
        if link.up is None or (before is None and not link.up):
            return
        self._up[name] = link.up
        flapped = before is not None and None not in (known, link.changes) and link.changes > known
        if before and not link.up:
            events.append(self._event("link_down", name, link.severity, "the link is down"))
        elif before is False and link.up:
            events.append(self._event("link_up", name, "info", "the link is up again"))
        elif link.up and flapped:
            text = "the link was down between two looks"
            events.append(self._event("link_flap", name, link.severity, text))

    def _miss(self, events: list[Event], kind: str, here: dict[str, str]) -> None:
        """Tell of what was here at the last look and is not now, and forget what is gone for long."""
        for name, severity in self._here[kind].items():
            if name in here:
                continue
            if self._up.get(name):
                events.append(self._event("link_down", name, severity, "the device is gone"))
            if name in self._up:
                self._up[name] = False
                self._gone[name] = None
            self._changes.pop(name, None)
            self._counted.pop(name, None)
            self._stormy.discard(name)
        for name in here:
            self._gone.pop(name, None)
        self._here[kind] = here
        while len(self._gone) > GONE_MAX:
            oldest = next(iter(self._gone))
            del self._gone[oldest], self._up[oldest]

    def _storm(self, events: list[Event], name: str, now_ns: int, counts: dict[str, int]) -> None:
        """`counts` are of what was sent again, by name; TCP's also of what was sent."""
        since_ns, before = self._counted.setdefault(name, (now_ns, counts))
        seconds = (now_ns - since_ns) / 1e9
        if now_ns - since_ns < WINDOW_NS:
            return
        self._counted[name] = now_ns, counts
        grown = {of: max(count - before[of], 0) for of, count in counts.items() if of in before}
        sent = grown.pop(SENT, None)
        again = sum(grown.values())
        rate = again / seconds
        stormy = rate > RDMA_PER_SECOND
        text = f"{rate:.0f} a second sent again"
        if sent is not None:
            share = again / max(sent, 1)
            stormy = rate > TCP_PER_SECOND and share > TCP_SHARE
            text += f", {100 * share:.1f} % of what was sent"
        if stormy and name not in self._stormy:
            events.append(self._event("retransmits", name, "warning", text))
        (self._stormy.add if stormy else self._stormy.discard)(name)

    def _event(self, kind: str, name: str, severity: str, text: str) -> Event:
        return Event(kind, name, self._settings.unix_ns(), severity=severity, text=text)


def _interface(path: str) -> Seen:
    # First the count: what happens in between is then told at the next look.
    changes, up = _number(f"{path}/carrier_changes"), _number(f"{path}/carrier")
    if up is None and _text(f"{path}/operstate") == "down":
        up = 0  # The kernel shows no carrier of an interface that was closed.
    return Seen(label(os.path.basename(path)), None if up is None else up == 1, changes, "warning")


def _port(path: str, name: str) -> Seen:
    downs, state = _number(f"{path}/counters/link_downed"), _state(f"{path}/state")
    return Seen(name, None if state is None else state == parse.ACTIVE, downs, "critical")


def _sent_again(path: str) -> dict[str, int]:
    try:
        names = _RETRANSMITS.intersection(listing(path) or ())
    except CollectorError:
        return {}
    found = {name: _number(f"{path}/{name}") for name in names}
    return {name: count for name, count in found.items() if count is not None}


def _text(path: str) -> str | None:
    try:
        text = read_text(path)
        return None if text is None else text.strip()
    except CollectorError:
        return None


def _number(path: str) -> int | None:
    try:
        return parse_count(_text(path) or "")
    except ParseError:
        return None


def _state(path: str) -> int | None:
    try:
        return parse.parse_state(_text(path) or "")
    except ParseError:
        return None


def _segments(path: str) -> dict[str, int] | None:
    """TCP segments sent again, and sent."""
    try:
        lines = [line.split() for line in (_text(path) or "").splitlines() if line.startswith("Tcp:")]
        found = dict(zip(lines[0], lines[1], strict=True))
        return {name: parse_count(found[name]) for name in (AGAIN, SENT)}
    except (ParseError, IndexError, KeyError, ValueError):
        return None
