"""Accounts of the rank pages on this machine, without an agent or an aggregator.

They cover one host: ranks on other hosts are not expected, so waiting for them shows as communication.

    runs, errors = runs_in("/dev/shm/goodput", now_mono_ns=time.perf_counter_ns())
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from goodput.account import DECLARED, Attempt, Event, Row, Run
from goodput.account.collectives.operation_sums import NO_SUMS, OperationSums, sums_of
from goodput.rank_page import page
from goodput.rank_page.collective_records import operation_rows
from goodput.rank_page.device_times import device_times
from goodput.rank_page.loader_words import figures
from goodput.rank_page.page import PageError
from goodput.rank_page.reader import Reader, Snapshot
from goodput.stack_samples import sample_file
from goodput.user_exceptions import reraise_from_handler
from goodput.wire.identity import name_of_user


def attempt_of(snapshot: Snapshot, now_mono_ns: int, alive: bool) -> Attempt:
    """A page's snapshot as an attempt of the account, at `now_mono_ns` on the rank's own clock."""
    identity, unix_ns = snapshot.identity, snapshot.unix_ns
    attempt = Attempt(
        rank=identity["rank"],
        attempt=identity["attempt"],
        start_ns=identity["start_unix_ns"],
        phases=snapshot.phases,
        phase_states=snapshot.phase_states,
        seen_ns=unix_ns(now_mono_ns),
        last_ns=unix_ns(snapshot.last_ns),
        phase=snapshot.phase,
        totals=snapshot.totals,
        unmeasured=snapshot.sampling.get("unmeasured_steps", 0),
        loader=figures(snapshot.loader, snapshot.workers),
        alive=alive,
        ended=snapshot.ended,
        end_ns=unix_ns(snapshot.end_ns if snapshot.ended else snapshot.last_ns),
    )
    for name in DECLARED:
        setattr(attempt, name, identity.get(name, getattr(attempt, name)))
    attempt.add_rows(
        Row(r.number, r.step, unix_ns(r.start_ns), unix_ns(r.end_ns), *r[4:]) for r in snapshot.steps
    )
    attempt.add_events(Event(e.number, e.kind, unix_ns(e.time_ns), e.step, e.text) for e in snapshot.events)
    return attempt


def collectives_of(reader: Reader, plugin: Reader | None = None) -> OperationSums:
    """What the page's collectives have cost, with the file of NCCL's profiler plugin in its process. Raises PageError."""
    found = reader.collectives(with_issue=True)
    if found is None:
        return NO_SUMS
    theirs = None if plugin is None else plugin.collectives(since=page.NS_MAX - 1)
    return sums_of(operation_rows(found, device=device_times(found, theirs)))


def collectives_with_plugin(reader: Reader) -> OperationSums:
    """With the plugin's file beside the page, if it is of the page's process and valid. Raises PageError."""
    stem = reader.path.removesuffix(page.SUFFIX)
    folder, name = os.path.split(stem)
    plain = name.rpartition(page.ALIAS)[0] if page.ALIAS in name.rpartition(".")[2] else name
    for alias in (plain, f"{plain}{page.ALIAS}{reader.owner}"):
        try:
            with Reader(os.path.join(folder, alias + page.PLUGIN_SUFFIX)) as plugin:
                if _process(plugin) == _process(reader):
                    return collectives_of(reader, plugin)
        except PageError:
            pass  # Most often there is none.
    return collectives_of(reader)


def _process(reader: Reader) -> tuple:
    found = reader.identity
    return reader.owner, found["host"], found["pid"], found.get("pid_start_ticks")


def own_plugin() -> Reader | None:
    """The file that NCCL's profiler plugin has open in this process, None without one; not to be closed.

    By its descriptor: to open and close the file would drop the plugin's lock.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}").removesuffix(" (deleted)")
            if link.endswith(page.PLUGIN_SUFFIX):
                plugin = Reader(link, int(name))
                if plugin.identity["pid"] == os.getpid():
                    return plugin
        except (OSError, PageError) as error:
            reraise_from_handler(error)
            continue  # Closed since, or another file.
    return None


class PageRead(NamedTuple):
    """What was read of a page: the run that it belongs to, its rank's attempt, the process's pid and the page's user.

    `standing` tells it from a copy, see PageFile.standing.
    """

    run: str
    attempt: Attempt
    pid: int
    owner: int
    path: str
    standing: tuple[bool, bool]


def read_page(path: str, now_mono_ns: int, steps_max: int = page.STEP_RING) -> PageRead:
    """The page at `path` now, with at most so many of its last steps where its process lives. Raises PageError.

    The time of steps that are left out is that of the totals at the first one that is read.
    """
    with Reader(path) as reader:
        alive = reader.alive()
        since = 0
        if alive and steps_max < page.STEP_RING:
            since = max(reader.snapshot(page.NS_MAX, page.NS_MAX, alive).steps_done - steps_max, 0)
        snapshot = reader.snapshot(since, alive=alive)
        attempt = attempt_of(snapshot, now_mono_ns, alive)
        attempt.stacks = sample_file.read(reader.path, attempt.start_ns)
        attempt.collectives = collectives_with_plugin(reader)
        pid = snapshot.identity["pid"]
        return PageRead(snapshot.identity["run"], attempt, pid, reader.owner, path, reader.standing())


# Devices of accelerators: NVIDIA's, AMD's, those of Windows' subsystem for Linux, and others by the kernel's class or VFIO.
_GPU_DEVICE = re.compile(r"nvidia\d+|nvidiactl|kfd|dxg|accel.*")


def is_without_gpu(dev: str = "/dev") -> bool:
    """Whether this machine certainly has no accelerator. Cost: some 20 us."""
    try:
        names = os.listdir(dev)
        groups = os.listdir(os.path.join(dev, "vfio")) if "vfio" in names else []
    except OSError as error:
        reraise_from_handler(error)
        return False
    return not any(map(_GPU_DEVICE.fullmatch, names)) and not any(map(str.isdigit, groups))


def page_paths(directory: str) -> list[str]:
    """The pages in `directory`, by name. Raises OSError."""
    names = sorted(os.listdir(directory))
    return [os.path.join(directory, n) for n in names if n.endswith(page.SUFFIX) and not n.startswith(".")]


def by_user(pages: Iterable[PageRead]) -> list[PageRead]:
    """These pages with one run for each user: where several have pages of one name, others' than this user's get theirs."""
    pages = list(pages)
    owners: dict[str, set[int]] = {}
    for one in pages:
        owners.setdefault(one.run, set()).add(one.owner)
    mine = os.geteuid()
    return [
        one
        if one.owner == mine or len(owners[one.run]) == 1
        else one._replace(run=name_of_user(one.run, one.owner))
        for one in pages
    ]


def without_copies(pages: Iterable[PageRead]) -> tuple[list[PageRead], list[str]]:
    """One page for each user's run, rank and attempt, and one message for each that is left out.

    Of pages of one process its own one counts, which it locks; of those of several, in several folders, the one of the
    process that lives or, where both do or neither, that began last.
    """
    kept: dict[tuple, PageRead] = {}
    errors = []
    for one in pages:
        key = one.owner, one.run, one.attempt.rank, one.attempt.attempt
        other = kept.get(key)
        if other is None:
            kept[key] = one
            continue
        kept[key], left = (one, other) if _is_before(one, other) else (other, one)
        which = "a copy of" if one.pid == other.pid else "of another process than"
        errors.append(
            f"{left.path}: run {left.run!r} rank {left.attempt.rank} attempt {left.attempt.attempt} is read from "
            f"{kept[key].path}, this is {which} that page"
        )
    return list(kept.values()), errors


def _is_before(one: PageRead, other: PageRead) -> bool:
    def order(of: PageRead) -> tuple:
        attempt = of.attempt
        by_process = () if one.pid == other.pid else (attempt.alive, attempt.start_ns)
        return *by_process, *of.standing, len(attempt.rows), attempt.last_ns

    return order(one) > order(other)


def runs_of(pages: Iterable[PageRead]) -> list[Run]:
    """The runs of these pages, by name."""
    runs: dict[str, Run] = {}
    without_gpu = is_without_gpu()
    for name, attempt, *_ in pages:
        run = runs.setdefault(name, Run(name, is_without_gpu=without_gpu, is_of_pages=True))
        run.attempts[attempt.rank, attempt.attempt] = attempt
    for run in runs.values():
        run.only_ranks = tuple(sorted({rank for rank, _ in run.attempts}))
    return [runs[name] for name in sorted(runs)]


def runs_in(directory: str, now_mono_ns: int, *others: str) -> tuple[list[Run], list[str]]:
    """The runs with pages in these folders, by name, and one message for each page that cannot be read."""
    found, errors = [], []
    for path in (path for one in (directory, *others) for path in page_paths(one)):
        try:
            found.append(read_page(path, now_mono_ns))
        except PageError as error:
            errors.append(str(error))
    pages, copies = without_copies(found)
    return runs_of(by_user(pages)), errors + copies


def continued_runs(runs: Iterable[Run]) -> dict[str, str]:
    """By name one message for each run that began with a checkpoint which another of these runs committed.

    By the file's fingerprint, which is noted where what is loaded does not hold its step.
    """
    runs = list(runs)
    committed: dict[str, tuple[str, int]] = {}
    for run in runs:
        for event in (event for attempt in run.attempts.values() for event in attempt.events.values()):
            if event.kind == "checkpoint_committed" and event.text:
                committed.setdefault(event.text, (run.name, event.step))
    found = {}
    for run in runs:
        for event in (event for attempt in run.attempts.values() for event in attempt.events.values()):
            name, step = committed.get(event.text, ("", 0)) if event.kind == "restored" else ("", 0)
            if name not in ("", run.name):
                found[run.name] = (
                    f"run {run.name!r} began with the checkpoint that run {name!r} committed at step {step}; if it goes on "
                    f"with that training, give both one name (goodput run --name {name}), and they are one run"
                )
    return found
