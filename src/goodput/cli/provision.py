"""`goodput provision`: certificates, tokens and configuration of a head and its nodes."""

from __future__ import annotations

import os
from pathlib import Path

from goodput.cli import fail

DESCRIPTION = """Make all that a head and its nodes need to talk over TLS with tokens: on this machine, the head, an
authority, the aggregator's certificate, options and token file, and Prometheus's configuration; for each node an archive
with its own token, certificate and options. Run it again to add nodes, and before certificates expire (after a year):
what is valid stays, certificates are made anew in their last 30 days."""
EPILOG = """examples:
  goodput provision head node001 node002 node003            as root on the head
  scp ~/goodput-authority/node001.tar node001:              for each node, and there, as root:
  tar -xf node001.tar -C /                                  after installing the package goodput-node
  goodput provision head $(sinfo -hN -o %N) --slurm         all nodes of a Slurm cluster
  goodput provision head vision001 --tenant vision          a node for runs named vision/... alone
  goodput provision head=10.0.0.1,head.example node001      further names in a certificate
  goodput provision head --remove node003                   revoke a node's token, and scrape it no more
"""


def add_options(parser) -> None:
    add = parser.add_argument
    add("head", metavar="HEAD",
        help="the name by which nodes reach this machine, or NAME=OTHER,OTHER with further names and IPv4 addresses")  # fmt: skip
    add("nodes", metavar="NODE", nargs="*",
        help="a node by the name by which this machine reaches it, in the same form; nodes of earlier calls stay")  # fmt: skip
    add("--tenant", metavar="NAME", help="limit these nodes to runs named NAME/...")
    add("--remove", metavar="NODE", action="append", default=[],
        help="revoke this node's token, delete its files and take it out of Prometheus's targets; repeatable")  # fmt: skip
    add("--slurm", action="store_true",
        help="also make the token and options with which slurmctld reports the end of jobs")  # fmt: skip
    add("--folder", metavar="DIR", default="~/goodput-authority",
        help="where the authority, keys and archives are kept, with mode 0700 (default: %(default)s)")  # fmt: skip
    add("--root", metavar="DIR", default="/",
        help="write the head's files below this folder, as for an image, and leave their owners to you")  # fmt: skip


def call(arguments) -> int:
    """0; 1 if something is missing or cannot be written, 2 for names that are none."""
    from goodput.access.token_file import FileError
    from goodput.provision.head import Plan, provision
    from goodput.provision.hosts import Host, ProvisionError
    from goodput.up.files import UpError, shipped

    root = Path(arguments.root).expanduser().resolve()
    try:
        hosts = [Host.parse(text) for text in (arguments.head, *arguments.nodes)]
    except ProvisionError as error:
        return fail("provision", error, 2)
    if root == Path("/") and os.geteuid() != 0:
        return fail("provision", "only root can write to /etc; with --root DIR files go below DIR")
    try:
        plan = Plan(
            head=hosts[0],
            nodes=list({host.name: host for host in hosts[1:]}.values()),
            folder=Path(arguments.folder).expanduser().resolve(),
            root=root,
            source=shipped(),
            tenant=arguments.tenant,
            remove=list(dict.fromkeys(arguments.remove)),
            slurm=arguments.slurm,
        )
        print("\n".join(provision(plan)))
    except (ProvisionError, UpError, FileError, ValueError) as error:
        return fail("provision", error)
    return 0
