"""One followed page: what is new in it at each poll, whether its process lives, and when it died.

The snapshot is taken after the liveness test, so the first poll that finds the process dead has everything it wrote. A
killed rank ends at its last boundary or at the last moment it was seen alive, whichever is later. A page that changes
after its process seemed dead (a lost lock, a pid in another namespace) is alive again. Declared fields that change are
in the reports from the next poll on. A poll without new steps costs about 40 us, each new step about 15 us.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from goodput.rank_page.loader_words import figures
from goodput.rank_page.page import NS_MAX, PLUGIN_SUFFIX, PageError
from goodput.rank_page.process_owner import ENDED
from goodput.rank_page.reader import Reader, Snapshot, StepRecord
from goodput.stack_samples import sample_file
from goodput.wire import schema
from goodput.wire.connections import Connections
from goodput.wire.identity import PLACES, RATES
from goodput.wire.ras import RasAnswer
from goodput_exporters.collectors.ranks.core_waits import CoreWaits
from goodput_exporters.collectors.ranks.node_links import NodeLinks
from goodput_exporters.collectors.ranks.reached_peaks import ReachedPeaks
from goodput_exporters.collectors.ranks.recent_steps import RecentSteps
from goodput_exporters.collectors.ranks.reported_collectives import ReportedCollectives, ReportedOperations
from goodput_exporters.collectors.ranks.traced_copies import TracedCopies
from goodput_exporters.system.processes import lock_holder
from goodput_exporters.system.ranks import RankPhases, RankProcess, rank_key

COMPUTE = frozenset(("forward", "backward", "optimizer"))
_DESCRIBED = ("device", "device_uuid", "devices", "group", "role", "worker", "dtype")


class Rank:
    """One page over its life. `poll` may raise PageError; the last good snapshot stays.

    `plugin` is the file of NCCL's profiler plugin in the same process: another one beside the page, which is then
    `joined` to it and no rank by itself, or in a process without the SDK this one. `run` is the name under which it is
    reported where that is not the page's own.
    """

    def __init__(
        self,
        name: str,
        reader: Reader,
        procfs: str,
        reached: ReachedPeaks,
        links: NodeLinks,
        run: str | None = None,
    ):
        self.name = name
        self.reader = reader
        self.owner = reader.owner  # the user whose file it is
        self.snapshot: Snapshot | None = None
        self.alive = False
        self.last_step: StepRecord | None = None
        self.new_steps = 0  # in the last poll
        self.event_gaps = 0  # polls that came after the event ring had gone round
        self.dead_since_ns: int | None = None
        self.retired = False  # settled, but its file could not be removed
        self.recent = RecentSteps()
        self.histograms: tuple | None = None  # (what they were computed from, buckets); see rank_series.py
        self._found, self._reached, self._links = reader.identity, reached, links
        self._copies, self._core_waits = TracedCopies(reader, reached), CoreWaits(procfs)
        self._run = run
        self.identity = _identity(self._found, run)
        self.key = rank_key(self.identity)
        self._procfs = procfs
        self._known_pid = 0  # the identity's, once it is known to be the page's process
        self._seen_alive_ns = 0
        self._death_reported = False
        self._steps_seen = 0
        self._events_seen = 0
        self._outside: tuple[int, ...] = ()
        self._stacks: schema.SampledStacks | None = None
        self._stacks_written_ns = 0
        self._collectives = ReportedCollectives()
        self.is_plugin = name.endswith(PLUGIN_SUFFIX)
        self.plugin: Reader | None = reader if self.is_plugin else None
        self.joined = False
        self.operations = ReportedOperations()
        # To be reported once; see reported_connections.py and nccl_ras.
        self.connections: Connections | None = None
        self.ras: RasAnswer | None = None

    def poll(self, now_ns: int, sequence: int) -> schema.RankReport | None:
        """Read the page at monotonic `now_ns`; None when it is dead and was reported so. Raises PageError."""
        alive = self.reader.alive(self._procfs)
        self._copies.poll()
        try:
            snapshot = self.reader.snapshot(self._steps_seen, self._events_seen, alive)
            check_plausible(snapshot)
        except PageError:
            self._note_alive(alive, now_ns)
            raise
        if self.dead_since_ns is not None and self.snapshot is not None:
            alive = alive or snapshot.last_ns != self.snapshot.last_ns
        self._note_alive(alive, now_ns)
        self._core_waits.poll(self._known_pid, now_ns)
        self._take(snapshot)
        self.new_steps = len(snapshot.steps)
        if self.joined or (self._death_reported and not alive and not snapshot.steps and not snapshot.events):
            return None
        self._death_reported = not alive
        return self._report(snapshot, now_ns, sequence)

    def _take(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        if snapshot.identity is not self._found:
            self._found = snapshot.identity
            self.identity = _identity(self._found, self._run)
        found = self.identity
        known = {
            "reached_flops_per_second": self._reached.of(found.device, found.dtype, found.devices),
            "reached_bus_bytes_per_second": self._reached.bus(found.world_size),
            **self._copies.fields(),
            **self._core_waits.fields(),
        }
        if any(getattr(found, name) != value for name, value in known.items()):
            self.identity = replace(found, **known)

    def progress_ns(self) -> int:
        """The monotonic end of its last step, or its start; where its steps are not recorded, its last call."""
        assert self.snapshot is not None
        if self.is_plugin:
            return self.snapshot.last_ns
        return self.snapshot.identity["start_mono_ns"] if self.last_step is None else self.last_step.end_ns

    def process_key(self) -> tuple:
        """What two files of one process have in common; of different users none are."""
        found = self.reader.identity
        return self.owner, found["host"], found["pid"], found.get("pid_start_ticks")

    def process_problem(self) -> str:
        """Why the pid is not the page's process in this agent's PID namespace, which a lock alone does not show."""
        return self.reader.process_problem(self.identity.pid, self._procfs)

    def is_local(self) -> bool:
        """Whether the pid has the page's start time here, under any user."""
        return self.process_problem() != ENDED

    def named_pid(self) -> int:
        """The pid that the page names, 0 where no process here has it and the page's start time."""
        return self.identity.pid if self.is_local() else 0

    def process(self) -> RankProcess:
        """Its process, as procfs identifies it."""
        identity, ticks = self.identity, self.reader.identity.get("pid_start_ticks")
        about = identity.run, identity.rank, identity.host, identity.pid
        return RankProcess(
            *about, ticks, lock_holder(self.reader.fd), identity.device_uuid, self.reader.owner
        )

    def now(self, monotonic_ns: Callable[[], int]) -> RankPhases | None:
        """Its totals on the host's clock up to this moment, the running phase included; None if they cannot be read."""
        try:
            found = self.reader.phase_times()
        except (PageError, OSError):
            return None
        totals = list(found.totals)
        if not found.has_ended:
            totals[found.running] += max(monotonic_ns() - found.last_ns, 0)
        own = [phase for phase, state in found.phase_states.items() if state == "productive"]
        about = self.key, self.identity.device_uuid, self._known_pid
        return RankPhases(*about, found.phases, COMPUTE.union(own), tuple(totals), found.last_ns)

    def _note_alive(self, alive: bool, now_ns: int) -> None:
        if not (alive and self.alive and self._known_pid):
            self._known_pid = self.identity.pid if alive and not self.process_problem() else 0
        self.alive = alive
        if alive:
            self._seen_alive_ns, self.dead_since_ns = now_ns, None
        elif self.dead_since_ns is None:
            self.dead_since_ns = now_ns

    def refresh(self) -> None:
        """Bring the snapshot's live part up to now, for a scrape between two polls. Raises PageError."""
        if self.alive:
            snapshot = self.reader.snapshot(NS_MAX, NS_MAX)
            check_plausible(snapshot)
            self._take(snapshot)

    def _report(self, snapshot: Snapshot, now_ns: int, sequence: int) -> schema.RankReport:
        offset_ns = snapshot.unix_ns(0)
        steps = [self._step_row(offset_ns, record) for record in snapshot.steps]
        if snapshot.steps:
            self.last_step = snapshot.steps[-1]
            self.recent.add(snapshot.steps)
            self._steps_seen = self.last_step.number
        if snapshot.events:
            self.event_gaps += 0 < self._events_seen < snapshot.events[0].number - 1
            self._events_seen = snapshot.events[-1].number
        return schema.RankReport(
            identity=self.identity,
            sequence=sequence,
            phases=snapshot.phases,
            live=self._live(snapshot, now_ns),
            phase_states=snapshot.phase_states,
            steps=steps,
            events=[
                schema.EventRow(
                    event.number, event.kind, snapshot.unix_ns(event.time_ns), event.step, event.text
                )
                for event in snapshot.events
            ],
        )

    def _step_row(self, offset_ns: int, record: StepRecord) -> schema.StepRow:
        # Time outside steps rarely changes; sharing equal tuples halves what a long backlog holds.
        if record.outside != self._outside:
            self._outside = record.outside
        return schema.StepRow(
            record.number,
            record.step,
            offset_ns + record.start_ns,
            offset_ns + record.end_ns,
            record.samples,
            record.totals,
            self._outside,
            record.device_ns,
        )

    def _live(self, snapshot: Snapshot, now_ns: int) -> schema.Live:
        if snapshot.ended:
            end_ns = snapshot.unix_ns(snapshot.end_ns)
        elif self.alive:
            end_ns = 0
        else:
            end_ns = snapshot.unix_ns(max(snapshot.last_ns, self._seen_alive_ns))
        return schema.Live(
            now_ns=snapshot.unix_ns(now_ns),
            last_ns=snapshot.unix_ns(snapshot.last_ns),
            phase=snapshot.phase,
            step_next=snapshot.step_next,
            steps_done=snapshot.steps_done,
            samples=snapshot.samples,
            alive=self.alive,
            ended=snapshot.ended,
            end_ns=end_ns,
            totals=snapshot.totals,
            cost_ns=snapshot.cost_ns,
            unmeasured=snapshot.sampling.get("unmeasured_steps", 0),
            loader=figures(snapshot.loader, snapshot.workers),
            drops={what: count for what, count in snapshot.drops.items() if count},
            stacks=self._sampled_stacks(),
            collectives=self._collectives.poll(
                self.reader, snapshot, now_ns, self.alive, self._procfs, self.plugin
            ),
            operations=self.operations.poll(
                self.reader,
                now_ns,
                not self.alive or bool(snapshot.ended),
                partial(self._links.of, self.identity),
                self.plugin,
            ),
            **self._take_once(),
        )

    def _take_once(self) -> dict[str, Any]:
        taken = {"connections": self.connections, "ras": self.ras}
        self.connections = self.ras = None
        return taken

    def _sampled_stacks(self) -> schema.SampledStacks | None:
        """The samples in the file beside the page, from the agent or `goodput run`; read again when it has changed."""
        written_ns = sample_file.written_ns(self.reader.path)
        if written_ns not in (0, self._stacks_written_ns):
            self._stacks_written_ns = written_ns
            found = sample_file.read(self.reader.path, self.identity.start_ns)
            if found.samples or found.reason:
                self._stacks = schema.SampledStacks(*found)
        return self._stacks


def check_plausible(snapshot: Snapshot) -> None:
    """Raise PageError for a number that no rank can have reached and that would not fit a report."""
    numbers = (snapshot.end_ns, snapshot.cost_ns, snapshot.samples, snapshot.background)
    if max(*numbers, *snapshot.drops.values()) >= NS_MAX or not -1 <= snapshot.step_next < NS_MAX:
        raise PageError("value", f"run {snapshot.identity['run']!r}: a live word is out of range")
    if any(event.time_ns >= NS_MAX or not -1 <= event.step < NS_MAX for event in snapshot.events):
        raise PageError("value", f"run {snapshot.identity['run']!r}: an event's time or step is out of range")


def _identity(found: dict[str, Any], run: str | None) -> schema.Identity:
    return schema.Identity(
        run=found["run"] if run is None else run,
        rank=found["rank"],
        attempt=found["attempt"],
        world_size=found["world_size"],
        host=found["host"],
        pid=found["pid"],
        start_ns=found["start_unix_ns"],
        **{name: found[name] for name in _DESCRIBED},
        flops_unknown=found.get("flops_unknown", ""),
        **{name: found[name] for name in (*PLACES, *RATES) if name in found},
    )
