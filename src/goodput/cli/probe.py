"""`goodput probe`: what a machine and a data loader can do."""

from __future__ import annotations

import contextlib
import json
import os
import time

import goodput
from goodput.cli import fail, message, number, os_error_text
from goodput.cli.compare import share
from goodput.cli.parsing.parser import HelpFormatter

FILE_BYTES_MAX = 64 << 20
# Workers that are blocked for less of a batch's time need not be sampled.
BLOCKED_MIN = 0.1

DESCRIPTION = """Measure what this machine can do: matrix products by dtype, copies to and from
GPUs, memory, storage, all-reduce. Not while a training uses it. Results are kept
in ~/.cache/goodput/probe, where `goodput report` finds them. Under torchrun each
node is measured, all-reduce over all ranks, and nodes are compared."""
EPILOG = """examples:
  goodput probe --path /data/train
  goodput probe --json > node7.json
  goodput probe --against node1.json node2.json      exit status 1: this node is slower
  torchrun --nnodes 4 --nproc-per-node 8 --no-python goodput probe
  goodput probe loader train:make_loader             a DataLoader: goodput probe loader --help

exit status: 0; 1 if a node is slower than its peers, or nothing could be measured;
2 a wrong call"""
LOADER_EPILOG = """example:
  goodput probe loader train:make_loader --workers-max 32
  goodput probe loader --run my-run                  by its recorded batches
  goodput probe loader --run two-workers eight-workers

Nothing is run for --run and --pid: the rank pages of trainings on this machine,
running or not, have what their loaders did. Runs of one training with several
num_workers show whether workers slow each other down. Of a training that still
runs the workers' waits are sampled for 5 s: storage or a lock.

exit status: 0; 1 if the loader could not be measured; 2 a wrong call"""


def add_options(parser) -> None:
    from goodput.probe import PARTS

    add = parser.add_argument
    add(
        "--path", default=".", metavar="FOLDER", help="where storage is measured: at the data (default: here)"
    )
    add("--only", choices=PARTS, nargs="+", metavar="PART", help="measure these parts: " + ", ".join(PARTS))
    add("--ranks", type=number(int, 2, 1024), metavar="N",
        help="processes of the all-reduce (default: one for each GPU, 2 on a machine without)")  # fmt: skip
    add(
        "--against",
        nargs="+",
        metavar="FILE",
        help="probes of peers, as --json prints them, in one file or several",
    )
    add("--tolerance", type=share, default=0.1, metavar="SHARE",
        help="how much slower than the peers' median is slower (default: 10%%)")  # fmt: skip
    add("--json", action="store_true", help="print JSON")
    actions = parser.add_subparsers(metavar="loader", dest="action")
    loader = actions.add_parser(
        "loader",
        help="throughput of a DataLoader, its limit, what to use",
        description="Measure a DataLoader over workers, batch size and pinning, and name what limits it;\n"
        "or infer it from the recorded batches of trainings.",
        epilog=LOADER_EPILOG,
        formatter_class=HelpFormatter,
    )
    add_loader_options(loader)


def add_loader_options(parser) -> None:
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "target",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="function that returns the torch.utils.data.DataLoader",
    )
    parser.add_argument("--run", nargs="+", metavar="RUN", help="use the recorded batches of these runs")
    parser.add_argument("--pid", nargs="+", type=number(int, 1, 1 << 22), metavar="PID",
        help="use the recorded batches of the trainings with these processes")  # fmt: skip
    parser.add_argument("--directory", help="folder of the rank pages (default: as for goodput report)")
    parser.add_argument("--copy", metavar="MODULE:FUNCTION",
        help="function that copies a batch to the device and waits for it (default: to() of all tensors)")  # fmt: skip
    parser.add_argument("--workers-max", type=number(int, 1, 256), default=max(16, 2 * cores), metavar="N",
        help="workers to try at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seconds", type=number(float, 0.05, 600, " seconds"), default=1.0,
        help="length of each of some twenty measurements (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--device", help="where batches are copied to (default: cuda if there is one, else cpu)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(arguments) -> int:
    if arguments.action == "loader" and not arguments.target:
        return _recorded(arguments)
    try:
        import torch
    except ModuleNotFoundError:
        return fail("probe", "PyTorch is missing: install the build for this machine, see pytorch.org")
    if arguments.action != "loader":
        return _node(arguments)
    with unrecorded():
        return _loader(arguments, torch)


@contextlib.contextmanager
def unrecorded():
    """The user's module may import goodput.auto, which would record the probe as a training; so would its workers."""
    from goodput.sdk.recorder.recorder import State

    recorder, before = goodput._session.recorder, os.environ.get("GOODPUT_DISABLE")
    state = recorder.state
    recorder.set_state(State.DISABLED)
    os.environ["GOODPUT_DISABLE"] = "1"
    try:
        yield
    finally:
        recorder.set_state(state)
        if before is None:
            del os.environ["GOODPUT_DISABLE"]
        else:
            os.environ["GOODPUT_DISABLE"] = before


def _node(arguments) -> int:
    from goodput.probe import PARTS, kept, launched, node, peers, text

    try:
        against = [peer for path in arguments.against or () for peer in read(path)]
    except OSError as error:
        return fail("probe", os_error_text(error))
    except kept.ProbeError as error:
        return fail("probe", error)
    if "storage" in (arguments.only or PARTS) and not os.path.isdir(arguments.path):
        return fail("probe", f"--path {arguments.path}: there is no such folder", 2)
    options = node.Options(arguments.path, tuple(arguments.only or PARTS), arguments.ranks)
    if launched.is_launched():
        try:
            documents = launched.probe(options, lambda what: message("probe", what))
        except RuntimeError as error:
            return fail("probe", error)
        if documents is None:
            return 0
        against = against or (documents if len(documents) > 1 else [])
    else:
        documents = [node.probe(options, lambda what: message("probe", what))]
        if any(figure["value"] for figure in documents[0]["figures"]):
            path = kept.save(documents[0], is_whole=not arguments.only)
            message("probe", f"kept in {path}" if path else "could not be kept: its folder cannot be written")
    if arguments.json:
        print(json.dumps(documents if launched.is_launched() else documents[0]))
    else:
        print("\n\n".join(text.render(one, against) for one in documents))
    if not any(figure["value"] for one in documents for figure in one["figures"]):
        return fail("probe", "nothing could be measured")
    if not against:
        return 0
    found = peers.slower(documents, against, arguments.tolerance)
    lines = text.render_slower(found)
    lines += [
        f"{host}: {name} is known of most peers only"
        for host, name in peers.missing(documents, against, options.parts)
    ]
    for line in lines:
        message("probe", line)
    if not peers.compared(documents, against):
        return fail("probe", "no figure to compare: the peers are this node itself, or have other devices")
    return 1 if lines else 0


def read(path: str) -> list[dict]:
    """The probes in a file. Raises OSError, or ProbeError for a file of something else."""
    from goodput.probe import kept

    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise kept.ProbeError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB")
    return kept.parse(text, path)


def _loader(arguments, torch) -> int:
    from goodput.probe.loader import target, text
    from goodput.probe.loader.probe import Options, probe

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.device(device)
        copy = target.copy_of(arguments.copy) if arguments.copy else None
        loader = target.loader_of(arguments.target)
        options = Options(arguments.workers_max, arguments.seconds, device, copy)
        found = probe(loader, options, lambda what: message("probe", what))
    except (target.TargetError, RuntimeError) as error:
        return fail("probe", error)
    print(json.dumps(found) if arguments.json else text.render(found))
    return 0


def _recorded(arguments) -> int:
    """The loader of trainings by their rank pages."""
    from goodput.probe.loader import recorded, recorded_text
    from goodput.rank_page.page import PageError, existing_directories
    from goodput.rank_page.shared_folders import pages_beside
    from goodput.sdk.reports.local_accounts import by_user, page_paths, read_page, without_copies
    from goodput.wire.identity import clean_text

    if not (arguments.run or arguments.pid):
        message("probe", "name a loader as module:function, or a training with --run or --pid")
        return 2
    directories = [arguments.directory] if arguments.directory else existing_directories()
    now_ns = time.perf_counter_ns()
    try:
        paths = [path for directory in directories for path in page_paths(directory)]
    except OSError as error:
        return fail("probe", f"{error.filename or directories[0]}: {error.strerror}")
    pages, errors = [], []
    for path in paths:
        try:
            pages.append(read_page(path, now_ns))
        except PageError as error:
            errors.append(str(error))
    pages, copies = without_copies(pages)
    for text in errors + copies:
        message("probe", f"skipped {clean_text(text, 300)}")
    for text in [] if arguments.directory else pages_beside(directories, os.geteuid()):
        message("probe", text)
    names, seen, records = set(), {}, []
    for page in by_user(pages):
        names.add(clean_text(page.run, 100))
        if page.run in (arguments.run or ()) or page.pid in (arguments.pid or ()):
            seen[page.run, page.attempt.rank, page.attempt.attempt] = page.path
            records.append(recorded.record_of(page.run, page.attempt))
    found = recorded.waiting_most([one for one in records if one is not None])
    if not found:
        there = ", ".join(sorted(names)[:5]) or "none"
        why = f"fewer than {recorded.BATCHES_MIN} batches of a DataLoader" if seen else "no such training"
        return fail("probe", f"{why} in {' or '.join(directories)}; runs there: {there}")
    document = recorded.predict([_with_waits(one, seen[one.run, one.rank, one.attempt]) for one in found])
    print(json.dumps(document) if arguments.json else recorded_text.render(document))
    return 0


def _with_waits(record, path: str):
    """The record with what its workers wait for, if these run here and are mostly blocked: sampled for some seconds."""
    from goodput.probe.loader import live_waits
    from goodput.rank_page.page import PageError
    from goodput.rank_page.reader import Reader
    from goodput.sdk.reports.local_accounts import read_page
    from goodput.wire.identity import clean_text

    if not record.workers or record.parts["blocked"] < BLOCKED_MIN * record.seconds:
        return record
    who = f"rank {record.rank} of {clean_text(record.run, 100)}"
    try:
        with Reader(path) as reader:
            pid = reader.identity["pid"]
            if not reader.alive() or reader.process_problem(pid, "/proc"):
                return record
        before, pids = read_page(path, time.perf_counter_ns()), live_waits.workers_of(pid)
        if not pids:
            return record
        message("probe", f"sampling for {live_waits.SECONDS:g} s what the loader's workers of {who} wait for")
        counts = live_waits.sampled(pids, record.workers, live_waits.SECONDS)
        after = read_page(path, time.perf_counter_ns())
    except PageError:
        return record
    found = live_waits.shares(before.attempt.loader, after.attempt.loader, counts)
    if isinstance(found, str):
        message("probe", f"{who}: whether workers wait for storage or a lock is not known: {found}")
        return record
    import dataclasses  # Here, since it takes 10 ms.

    return dataclasses.replace(record, lock_share=found["lock"])
