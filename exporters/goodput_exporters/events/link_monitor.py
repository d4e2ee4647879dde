"""Watches network links: which went down or came back, which flap, and which retransmit much.

Events, each reported once: link_down (also for a device that disappears), link_up, link_flap (down and up between two
polls) and retransmits (above the limits within a window; again only after a window below them). A link that was
never up is not down: many ports have no cable. About 0.1 ms per poll for each RDMA port and each interface with
hardware.

    monitor = LinkMonitor(settings); events = monitor.poll()
"""

from __future__ import annotations

import os
from typing import NamedTuple

from goodput_exporters.collector import CollectorError, Settings
from goodput_exporters.gpu.sample import Event
from goodput_exporters.system import infiniband
from goodput_exporters.system.files import CounterFiles, clean, label, list_names, parse_count, parse_protocol

LINKS_MAX = 128
GONE_MAX = 128
WINDOW_NS = 10 * 10**9
# TCP: share of the segments sent, and per second. RDMA: per second and port.
TCP_SHARE, TCP_PER_SECOND, RDMA_PER_SECOND = 0.01, 100, 100
TCP, RETRANSMITTED, SENT = "tcp", "RetransSegs", "OutSegs"
_RETRANSMITS = {
    name for name, (series, _, _) in infiniband.HARDWARE.items() if series == infiniband.RETRANSMITS
}


class LinkState(NamedTuple):
    """A link at one poll; None is unknown. `changes` grows when it goes down, and for Ethernet also when it comes up."""

    name: str
    up: bool | None
    changes: int | None
    severity: str


class LinkMonitor:
    def __init__(self, settings: Settings):
        self._settings = settings
        self._net = os.path.join(settings.sysfs, "class/net")
        self._rdma = os.path.join(settings.sysfs, "class/infiniband")
        self._up: dict[str, bool] = {}  # links that were up at some time
        self._changes: dict[str, int] = {}
        self._retransmits: dict[str, tuple[int, dict[str, int]]] = {}  # start of the window, counters then
        self._retransmitting: set[str] = set()
        # Severity by name at the last poll.
        self._present: dict[str, dict[str, str]] = {"ethernet": {}, "rdma": {}}
        self._events: list[Event] = []
        self._files = CounterFiles()  # an unreadable file means unknown; its collector reports the problem

    def poll(self) -> list[Event]:
        """The events since the last poll."""
        self._events, self._files = [], CounterFiles()
        now_ns = self._settings.monotonic_ns()
        for kind, read in (("ethernet", self._read_interfaces), ("rdma", self._read_ports)):
            try:
                states = read(now_ns)
            except CollectorError:
                continue  # A directory that cannot be listed does not mean that its devices are gone.
            for state in states:
                self._compare(state)
            self._find_missing(kind, {state.name: state.severity for state in states})
        segments = self._files.read(
            os.path.join(self._settings.procfs, "net/snmp"),
            lambda text: parse_protocol(text, "Tcp", (RETRANSMITTED, SENT)),
            1 << 20,
        )
        if segments and len(segments) == 2:
            self._check_retransmits(TCP, now_ns, segments)
        return self._events

    def devices(self) -> dict[str, list[str]]:
        """The devices at the last poll by kind: ethernet, rdma, and tcp where the kernel counts it."""
        tcp = [TCP] if TCP in self._retransmits else []
        return {kind: list(names) for kind, names in self._present.items()} | {"tcp": tcp}

    def _read_interfaces(self, _: int) -> list[LinkState]:
        paths = [os.path.join(self._net, name) for name in list_names(self._net) or ()]
        # Interfaces of containers, of which there may be hundreds, have no device.
        paths = [path for path in paths if os.path.exists(f"{path}/device")][:LINKS_MAX]
        return [self._read_interface(path) for path in paths]

    def _read_interface(self, path: str) -> LinkState:
        # The count first: a change in between is then found at the next poll.
        changes = self._files.read(f"{path}/carrier_changes", parse_count)
        up = self._files.read(f"{path}/carrier", parse_count)
        if up is None and self._files.read(f"{path}/operstate", clean) == "down":
            up = 0  # The kernel has no carrier file for an interface that is administratively down.
        return LinkState(label(os.path.basename(path)), None if up is None else up == 1, changes, "warning")

    def _read_ports(self, now_ns: int) -> list[LinkState]:
        ports = [
            (f"{label(device)}/{label(port)}", os.path.join(self._rdma, device, "ports", port))
            for device in list_names(self._rdma) or ()
            for port in list_names(os.path.join(self._rdma, device, "ports")) or ()
        ]
        return [self._read_port(name, path, now_ns) for name, path in ports[:LINKS_MAX]]

    def _read_port(self, name: str, path: str, now_ns: int) -> LinkState:
        downs = self._files.read(f"{path}/counters/link_downed", parse_count)
        state = self._files.read(f"{path}/state", infiniband.parse_state)
        names = _RETRANSMITS.intersection(self._files.names(f"{path}/hw_counters"))
        counts = {name: self._files.read(f"{path}/hw_counters/{name}", parse_count) for name in names}
        self._check_retransmits(
            name, now_ns, {key: count for key, count in counts.items() if count is not None}
        )
        return LinkState(name, None if state is None else state == infiniband.ACTIVE, downs, "critical")

    def _compare(self, link: LinkState) -> None:
        name, before, flapped = link.name, self._up.get(link.name), False
        if link.changes is not None:
            flapped = before is not None and link.changes > self._changes.get(name, link.changes)
            self._changes[name] = link.changes
        if link.up is None or (before is None and not link.up):
            return
        self._up[name] = link.up
        if before and not link.up:
            self._add_event("link_down", name, link.severity, "the link is down")
        elif before is False and link.up:
            self._add_event("link_up", name, "info", "the link is up again")
        elif link.up and flapped:
            self._add_event("link_flap", name, link.severity, "the link was down between two polls")

    def _find_missing(self, kind: str, present: dict[str, str]) -> None:
        """Report devices that disappeared since the last poll, and forget the oldest of those."""
        for name, severity in self._present[kind].items():
            if name in present:
                continue
            if self._up.get(name):
                self._add_event("link_down", name, severity, "the device is gone")
            if self._up.pop(name, None) is not None:
                self._up[name] = False  # Now the last: the oldest are forgotten first.
            self._changes.pop(name, None)
            self._retransmits.pop(name, None)
            self._retransmitting.discard(name)
        self._present[kind] = present
        gone = [name for name in self._up if not any(name in names for names in self._present.values())]
        for name in gone[:-GONE_MAX]:
            del self._up[name]

    def _check_retransmits(self, name: str, now_ns: int, counts: dict[str, int]) -> None:
        """`counts` are cumulative retransmits by counter; TCP's also include the segments sent."""
        since_ns, before = self._retransmits.setdefault(name, (now_ns, counts))
        if now_ns - since_ns < WINDOW_NS:
            return
        self._retransmits[name] = now_ns, counts
        # A counter that was reset, or was absent before, has not grown.
        grown = {key: max(count - before[key], 0) for key, count in counts.items() if key in before}
        sent = grown.pop(SENT, None)
        retransmits = sum(grown.values())
        rate = retransmits / ((now_ns - since_ns) / 1e9)
        is_over, text = rate > RDMA_PER_SECOND, f"{rate:.0f} retransmits a second"
        if sent is not None:
            share = retransmits / max(sent, 1)
            is_over = rate > TCP_PER_SECOND and share > TCP_SHARE
            text += f", {100 * share:.1f} % of the segments sent"
        if is_over and name not in self._retransmitting:
            self._add_event("retransmits", name, "warning", text)
        (self._retransmitting.add if is_over else self._retransmitting.discard)(name)

    def _add_event(self, kind: str, name: str, severity: str, text: str) -> None:
        self._events.append(Event(kind, name, self._settings.unix_ns(), severity=severity, text=text))
