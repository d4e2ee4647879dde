"""`goodput node`: run the agent of this node, which reads rank pages, serves /metrics and pushes to an aggregator.

The agent itself is goodput_exporters, imported when the command runs.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys

from goodput.access.options import add_access_options, listen_address, service_url
from goodput.cli import (
    fail,
    has_colour,
    loading,
    message,
    number,
    raise_file_limit,
    share_memory_arena,
    tune_garbage_collector,
)
from goodput.cli.parsing.config_file import add_config_option
from goodput.otlp.settings import add_otlp_options, settings_of
from goodput.rank_page import page

DESCRIPTION = """Read this node's rank pages and counters, serve them to Prometheus, and push them to the
aggregator."""
EPILOG = """examples:
  goodput node                                             serve the series of this node and its ranks
  goodput node --aggregator https://goodput.internal:9471 --token-file FILE   and push reports
  goodput node --aggregator URL --py-spy                   and the stacks of ranks that hang
  goodput node --once                                      print one exposition and exit
  goodput node --check                                     print what can be measured on this node and why not
"""

SECONDS_MAX = 86_400.0
GPUS_MAX = 256
FAILURE_SECONDS = 2.0  # how long a failed agent goes on at most
RAS_ADDRESS = "localhost:28028"  # NCCL's default
NETWORK_KINDS = ("physical", "bond", "infiniband", "virtual")
# The kubelet's, below --rootfs.
POD_RESOURCES, CONTAINER_LOGS = "var/lib/kubelet/pod-resources/kubelet.sock", "var/log/containers"
GPU_DRIVERS = ("nvml", "dcgm", "amd", "dcgm_endpoint")
# Secrets are passed as files: every user of the node can read command lines.
FILES = {
    "--token-file": "token of scope ingest for the aggregator, read again for each request",
    "--ca-file": "certificate authorities (PEM) to trust for an https aggregator, instead of the system's",
    "--client-cert": "this node's certificate (PEM, with its chain), if the aggregator requires one",
    "--client-key": "the key of --client-cert (PEM, not encrypted)",
}


def add_options(parser) -> None:
    add_config_option(parser)
    add = parser.add_argument
    add("--directory", type=path, default=page.default_directory(),
        help="folder of the rank pages (default: %(default)s)")  # fmt: skip
    add("--listen", metavar="ADDRESS:PORT", type=listen_address, default="127.0.0.1:9470",
        help="address to serve on; port 0 takes a free one (default: %(default)s)")  # fmt: skip
    add_aggregator_options(add, "push reports to this aggregator (default: $GOODPUT_AGGREGATOR, else none)")
    add("--interval", metavar="SECONDS", type=seconds(0.01), default=1.0,
        help="time between reads of the rank pages (default: %(default)s)")  # fmt: skip
    add("--push-interval", metavar="SECONDS", type=seconds(0.01), default=5.0,
        help="time between pushes (default: %(default)s)")  # fmt: skip
    add("--grace", metavar="SECONDS", type=seconds(0), default=60.0,
        help="how long a dead rank's page is kept (default: %(default)s)")  # fmt: skip
    add("--py-spy", action="store_true",
        help="when the aggregator detects that a rank of this node hangs, run `py-spy dump` on its process and send "
        "the stack (functions, files and lines; no variables, no command line). Needs py-spy on this node "
        "(pip install 'goodput-telemetry[stacks]') and permission to trace the process: root, CAP_SYS_PTRACE, or "
        "the same user with kernel.yama.ptrace_scope=0 (default: off)")  # fmt: skip
    add("--stack-samples", choices=("auto", "off"), default="auto",
        help="sample the main threads of ranks that spend time in no phase with py-spy, so that the advice names "
        "functions and lines; auto: where py-spy is installed and may read the process (as for --py-spy), within "
        "0.5 %% of a core (default: %(default)s)")  # fmt: skip
    add("--nccl-ras", metavar="HOST:PORT", type=ras_address, nargs="?", const=RAS_ADDRESS,
        help="when a rank of this node hangs, ask NCCL's RAS at this address which ranks of its job are missing, have "
        "failed or are behind, and report it for the verdict; NCCL 2.28.7 and later "
        f"(default: off; without an address {RAS_ADDRESS})")  # fmt: skip
    add("--sysfs", metavar="ROOT", type=path, default="/sys", help="default: %(default)s")
    add("--procfs", metavar="ROOT", type=path, default="/proc", help="default: %(default)s")
    add("--rootfs", metavar="ROOT", type=path, default="/",
        help="where the host's root is mounted, for the agent in a container: local file systems below it are measured, "
        "and the kubelet's files are read there (default: %(default)s)")  # fmt: skip
    add("--path", metavar="DIR", type=path, action="append", default=[],
        help="measure the file system of this directory (datasets, checkpoints); repeatable. Network and local file "
        "systems are always measured")  # fmt: skip
    add("--textfile-dir", metavar="DIR", type=path, action="append", default=[],
        help="also serve the series in the *.prom files of this directory, which other programs write, as node_exporter "
        "does; repeatable (default: none)")  # fmt: skip
    add("--pod-resources", metavar="SOCKET", type=path,
        help="the kubelet's pod-resources API, which names the pods that have GPUs; needs the extra `pods` and root "
        f"(default: {POD_RESOURCES} below --rootfs)")  # fmt: skip
    add("--network", metavar="KIND", action="append", choices=NETWORK_KINDS, default=[],
        help="kinds of network interfaces to read: physical, bond, infiniband (IP over InfiniBand), virtual (of "
        "containers, bridges, tunnels); repeatable (default: the first three, or all where there is none of these)")  # fmt: skip
    add("--probe", metavar="FILE", type=path,
        help="what `goodput probe` kept of this node, for the compute efficiency against the peak that it reached "
        "(default: ~/.cache/goodput/probe/HOST.json of this user)")  # fmt: skip
    add("--gpus", metavar="N", type=number(int, 0, GPUS_MAX, " GPUs"),
        help="number of GPUs this node should have (default: those on the PCI bus)")  # fmt: skip
    add("--gpu-interval", metavar="SECONDS", type=seconds(0.1, 60), default=1.0,
        help="time between samples of the GPUs, 0.1 to 60 (default: %(default)s)")  # fmt: skip
    add("--gpu-driver", metavar="NAME", action="append", choices=GPU_DRIVERS,
        help="use only this driver: nvml, dcgm, amd or dcgm_endpoint; repeatable (default: all)")  # fmt: skip
    add("--dcgm-exporter", metavar="URL", type=url,
        help="read GPUs from this dcgm-exporter's /metrics instead of a driver")  # fmt: skip
    add("--compat", choices=("dcgm", "dcgm-only"), default="",
        help="also serve NVIDIA's GPUs under dcgm-exporter's names and labels; dcgm-only: instead of ours")  # fmt: skip
    add("--dcgm-fields", metavar="FILE", type=path,
        help="dcgm-exporter's list of counters: --compat serves these, and fields that goodput does not know are read "
        "from DCGM or a dcgm-exporter as they are")  # fmt: skip
    add_otlp_options(add, seconds(0.1))
    add("--once", action="store_true", help="print one exposition and exit; changes nothing on the node")
    add("--check", action="store_true",
        help="print what can be measured on this node, what not and why; exit status 1 if something failed")  # fmt: skip
    add("--json", action="store_true", help="with --check: print JSON")
    add_access_options(parser.add_argument_group("access to /metrics").add_argument)


def add_aggregator_options(add, help: str, name: str = "--aggregator") -> None:
    """The aggregator's URL, by this name, and the files with the credentials for it."""
    aggregator = os.environ.get("GOODPUT_AGGREGATOR") or None
    add(name, dest="aggregator", metavar="URL", type=url, default=aggregator, help=help)
    for option, text in FILES.items():
        variable = variable_of(option)
        add(option, metavar="FILE", type=path, default=os.environ.get(variable) or None,
            help=f"{text} (default: ${variable})")  # fmt: skip


def ras_address(text: str) -> str:
    listen_address(text)
    return text


def path(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("empty path; omit the option for its default")
    return text


def url(text: str) -> str:
    service_url(text, "use --token-file", "http://goodput.internal:9471")
    return text


def seconds(minimum: float, maximum: float = SECONDS_MAX):
    return number(float, minimum, maximum, " seconds")


def gpu_drivers(arguments) -> tuple[str, ...] | None:
    """The GPU drivers to use, None for all. This node's drivers do not describe another sysfs tree."""
    if arguments.gpu_driver:
        return tuple(dict.fromkeys(arguments.gpu_driver))
    if os.path.realpath(arguments.sysfs) != "/sys":
        return ("amd", "dcgm_endpoint")
    return None


def call(arguments) -> int:
    """Run the agent until SIGTERM or SIGINT."""
    try:
        with loading():
            import logging

            from goodput.stack_samples.py_spy import find_py_spy
            from goodput_exporters.agent import Agent
            from goodput_exporters.push.credentials import Credentials
    except ImportError as error:
        return fail("node", f"{error}. The node agent needs: pip install 'goodput-telemetry[node]'")
    logging.basicConfig(level=logging.WARNING, format="goodput node: %(message)s", stream=sys.stderr)
    _warn_of_empty_variables(arguments)
    credentials = Credentials(*(getattr(arguments, attribute_of(option)) for option in FILES))
    is_running = not (arguments.once or arguments.check)
    try:
        _check_arguments(arguments, credentials)
        otlp = settings_of(arguments) if is_running else None
        authenticator = authenticator_of(arguments) if is_running else None
        agent = _agent(Agent, arguments, credentials, authenticator, otlp)
    except ValueError as error:
        return fail("node", error, 2)
    if arguments.py_spy and find_py_spy() is None:
        message(
            "node", "py-spy is not installed, so no stacks are sent: pip install 'goodput-telemetry[stacks]'"
        )
    if arguments.check:
        return _check(agent, arguments, credentials)
    if arguments.once:
        sys.stdout.write(agent.once())
        return 0
    return _run(agent, arguments)


def _agent(agent_class, arguments, credentials, authenticator, otlp):
    """The agent as its options say. Raises ValueError for a file that is malformed."""
    from goodput.probe import kept

    is_running = not (arguments.once or arguments.check)
    return agent_class(
        arguments.directory,
        aggregator=arguments.aggregator if is_running else None,
        credentials=credentials,
        authenticator=authenticator,
        interval_seconds=arguments.interval,
        push_interval_seconds=arguments.push_interval,
        grace_seconds=arguments.grace,
        py_spy=arguments.py_spy,
        sample_stacks=is_running and arguments.stack_samples == "auto",
        nccl_ras=(arguments.nccl_ras or "") if is_running else "",
        otlp=otlp,
        compat=arguments.compat,
        sysfs=arguments.sysfs,
        procfs=arguments.procfs,
        rootfs=arguments.rootfs,
        gpus_expected=arguments.gpus,
        probe=arguments.probe or kept.path_of(socket.gethostname()) or "",
        gpu_interval_seconds=arguments.gpu_interval,
        dcgm_endpoint=arguments.dcgm_exporter or "",
        dcgm_fields=arguments.dcgm_fields or "",
        drivers=gpu_drivers(arguments),
        paths=tuple(arguments.path),
        pod_resources=arguments.pod_resources or os.path.join(arguments.rootfs, POD_RESOURCES),
        container_logs=os.path.join(arguments.rootfs, CONTAINER_LOGS),
        textfile_directories=tuple(arguments.textfile_dir),
        network_kinds=tuple(dict.fromkeys(arguments.network)),
    )


def attribute_of(option: str) -> str:
    return option[2:].replace("-", "_")


def variable_of(option: str) -> str:
    return f"GOODPUT_{attribute_of(option).upper()}"


def _warn_of_empty_variables(arguments) -> None:
    """An empty variable counts as unset, which may not be what the user meant."""
    for option in ("--aggregator", *FILES):
        is_unset = getattr(arguments, attribute_of(option)) is None
        if is_unset and os.environ.get(variable_of(option)) == "":
            message("node", f"warning: {variable_of(option)} is empty and treated as unset")


def _check_arguments(arguments, credentials) -> None:
    """Raise ValueError for contradictory options, unusable credentials, or an unsafe address."""
    from goodput.access.listening import check_options
    from goodput.access.token_file import permission_problem
    from goodput_exporters.push.credentials import Unreachable

    if arguments.once and arguments.check:
        raise ValueError("--once and --check exclude each other")
    if arguments.json and not arguments.check:
        raise ValueError("--json needs --check; --once prints the Prometheus text format")
    if arguments.py_spy and not arguments.aggregator:
        raise ValueError("--py-spy needs --aggregator, which requests the stacks")
    if arguments.nccl_ras and not arguments.aggregator:
        raise ValueError("--nccl-ras needs --aggregator, which gives the verdict")
    if bool(credentials.client_cert) != bool(credentials.client_key):
        raise ValueError("--client-cert and --client-key go together")
    for name in filter(None, (credentials.token_file, credentials.client_key)):
        if problem := permission_problem(name):
            message("node", f"warning: {problem}")
    try:
        credentials.headers()
        if (arguments.aggregator or "").startswith("https:"):
            credentials.context()
    except Unreachable as error:
        raise ValueError(str(error)) from None
    if not arguments.once:
        check_options(arguments, arguments.listen[0], only_metrics=True)


def authenticator_of(arguments):
    """The authenticator of /metrics. Raises ValueError."""
    from goodput_exporters.server.authentication import NodeAuthenticator

    is_public = arguments.metrics_public
    any_host = bool(arguments.client_ca or is_public)
    return NodeAuthenticator.from_options(arguments, use_tokens=not is_public, any_host=any_host)


def _check(agent, arguments, credentials) -> int:
    import json

    from goodput_exporters.check import FAILED, check, text

    findings = check(agent, arguments.listen, arguments.aggregator, credentials)
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        print(text(findings, has_colour()))
    return 1 if any(finding.status == FAILED for finding in findings) else 0


def _run(agent, arguments) -> int:
    import signal
    import threading

    from goodput_exporters.directory_lock import DirectoryInUse
    from goodput_exporters.server.server import Server

    raise_file_limit(8192)  # One descriptor per rank page.
    share_memory_arena()
    stopping = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stopping.set())
    try:
        server = Server(agent.exposition, agent.health, arguments.listen, agent.authenticator, agent.warnings)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        return fail("node", f"cannot listen on {arguments.listen[0]}:{arguments.listen[1]}: {why}")
    try:
        agent.start()
        server.start()
        tune_garbage_collector(10_000)
        target = f"pushes to {arguments.aggregator}" if arguments.aggregator else "pushes nowhere"
        if arguments.otlp:
            target += f", exports to {arguments.otlp}"
        print(f"goodput node: reads {arguments.directory}, serves {server.url}/metrics, {target}", flush=True)
        while not stopping.wait(FAILURE_SECONDS) and agent.failure is None:
            pass
    except DirectoryInUse as error:
        agent.failure = str(error)
    finally:
        server.stop()
        agent.stop()
    return fail("node", agent.failure) if agent.failure else 0
