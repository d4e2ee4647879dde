"""`goodput probe`: what a data loader can do."""

from __future__ import annotations

import json
import os

from goodput.cli import fail, message, number

HELP = "measure what a data loader can do, and what limits it"
DESCRIPTION = """Measure a data loader outside of any training."""
EPILOG = """examples:
  goodput probe loader train:make_loader

exit status: 0; 1 if nothing could be measured; 2 a wrong call"""


def add_options(parser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    add_loader_options(
        actions.add_parser("loader", help="throughput of a DataLoader, its limit, what to use")
    )


def add_loader_options(parser) -> None:
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("target", metavar="MODULE:FUNCTION", help="returns the torch.utils.data.DataLoader")
    parser.add_argument("--copy", metavar="MODULE:FUNCTION",
        help="copies a batch to the device and waits for it (default: to() of all tensors)")  # fmt: skip
    parser.add_argument("--workers-max", type=number(int, 1, 256), default=max(16, 2 * cores), metavar="N",
        help="workers to try at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seconds", type=number(float, 0.05, 600, " seconds"), default=1.0,
        help="length of each of some twenty measurements (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--device", help="where batches are copied to (default: cuda if there is one, else cpu)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(arguments) -> int:
    try:
        import torch
    except ModuleNotFoundError:
        return fail("probe", "PyTorch is missing: install the build for this machine, see pytorch.org")
    return _loader(arguments, torch)


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
