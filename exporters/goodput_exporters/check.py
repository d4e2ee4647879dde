"""`goodput node --check`: what the agent can measure on this node, what not, and why. Changes nothing on the node.

print(text(check(agent, ("127.0.0.1", 9470), None), colour=False))
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple

from goodput.metrics import Families
from goodput.wire import schema
from goodput.wire.identity import clean_text
from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.directory_lock import NAME as LOCK_NAME
from goodput_exporters.directory_lock import DirectoryLock, Refused
from goodput_exporters.push.client import AggregatorClient
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials, Unreachable
from goodput_exporters.push.pusher import PATH

OK, NONE, FAILED = "ok", "none", "failed"
MARKS = {OK: ("ok", "32"), NONE: ("-", "2"), FAILED: ("FAILED", "31")}
WIDTH = 22
DETAIL_MAX = 500
TIMEOUT_SECONDS = 3.0


class Finding(NamedTuple):
    """`status` is ok, none (nothing to measure, which may be right) or failed."""

    what: str
    status: str
    detail: str


def check(
    agent, listen: tuple[str, int], aggregator: str | None, credentials: Credentials = NONE_NEEDED
) -> list[Finding]:
    """Check everything once; GPU drivers have three seconds to answer."""
    findings = [_user(), *_paths(agent.settings), *_directory_and_port(agent.settings.directory, listen)]
    if aggregator:
        findings.append(_aggregator(aggregator, agent.node, credentials))
    agent.gpus.start()
    try:
        agent.gpus.settle()
        findings += _gpus(agent)
        findings.append(_ranks(agent))
        for name, runner in agent.runners.items():
            if name not in ("ranks", "gpus"):
                findings.append(_collector(name, runner.collector))
    finally:
        agent.gpus.close()
    return findings


def text(findings: list[Finding], colour: bool) -> str:
    """One line per finding, then how many failed."""
    lines = []
    for what, status, detail in findings:
        mark, code = MARKS[status]
        shown = f"\033[{code}m{mark:<7}\033[0m" if colour else f"{mark:<7}"
        lines.append(f"{shown}{what:<{WIDTH}} {detail}")
    failed = sum(finding.status == FAILED for finding in findings)
    lines.append(f"\n{failed} of {len(findings)} failed." if failed else "\nNothing failed.")
    return "\n".join(lines)


def _user() -> Finding:
    if os.geteuid() == 0:
        return Finding("user", OK, "root: can inspect processes and files of all users")
    detail = f"uid {os.geteuid()}: owners of other users' processes are unknown; counters do not need root"
    return Finding("user", OK, detail)


def _paths(settings) -> list[Finding]:
    """The configured paths that do not exist."""
    found = []
    for name, path, inside in (("procfs", settings.procfs, "stat"), ("sysfs", settings.sysfs, "class")):
        if not os.path.exists(os.path.join(path, inside)):
            found.append(Finding(name, FAILED, f"{path} has no {inside}; is it mounted?"))
    for path in settings.paths:
        if not os.path.exists(path):
            found.append(Finding("path", FAILED, f"{path} does not exist"))
    return found


def _directory_and_port(directory: str, listen: tuple[str, int]) -> list[Finding]:
    """Both belong to one agent. If one holds both, it is this node's agent and not a conflict."""
    pages, port = _directory(directory), _listen(listen)
    if pages.status == port.status == FAILED and (pid := _holder(directory)) and _is_agent(listen):
        here = f"in use by the running agent, pid {pid}"
        return [
            Finding("rank pages", OK, f"{directory}: {here}"),
            Finding("listen", OK, f"{port.detail.rpartition(': ')[0]}: {here}"),
        ]
    return [pages, port]


def _holder(directory: str) -> int:
    """The pid of the agent that holds the directory's lock, in this PID namespace; 0 if unknown."""
    try:
        inode = os.stat(os.path.join(directory, LOCK_NAME)).st_ino
        with open("/proc/locks", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except (OSError, ValueError):
        return 0
    # 12: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF; the device number may differ from stat's, so only the inode is
    # compared.
    held = [row for row in rows if len(row) == 8 and row[1] == "FLOCK" and row[5].endswith(f":{inode}")]
    return max((int(row[4]) for row in held), default=0)


def _is_agent(address: tuple[str, int]) -> bool:
    """Whether an agent listens there. Nothing secret is sent, so the certificate is not verified."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address[0], address[0])
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = HTTPConnection(host, address[1], timeout=1.0)
    for connection in (plain, HTTPSConnection(host, address[1], timeout=1.0, context=context)):
        is_tls = False
        try:
            connection.connect()
            is_tls = connection is not plain
            connection.request("GET", "/healthz")
            return (connection.getresponse().getheader("Server") or "").split("/")[0].strip() == "goodput"
        except TimeoutError:
            return False
        except (OSError, HTTPException):
            if is_tls:
                # It requires a client certificate; on this port and beside that lock it is the agent.
                return True
        finally:
            connection.close()
    return False


def _directory(directory: str) -> Finding:
    try:
        os.listdir(directory)
    except FileNotFoundError:
        return Finding("rank pages", NONE, f"{directory} does not exist yet; the first rank creates it")
    except OSError as error:
        return Finding("rank pages", FAILED, f"{directory}: {error.strerror}")
    lock = DirectoryLock(directory)
    existed = os.path.exists(os.path.join(directory, LOCK_NAME))
    try:
        held = lock.hold()
    except Refused as refusal:
        return Finding("rank pages", FAILED, str(refusal))
    finally:
        lock.release()
    if held and not existed:
        os.unlink(os.path.join(directory, LOCK_NAME))
    if not held:
        return Finding(
            "rank pages", OK, f"{directory} is readable but not writable: pages of dead ranks are not removed"
        )
    return Finding("rank pages", OK, f"{directory} is readable and writable")


def _listen(address: tuple[str, int]) -> Finding:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except (OSError, OverflowError) as error:
        return Finding("listen", FAILED, f"{address[0]}:{address[1]}: {error}")
    return Finding("listen", OK, f"{address[0]}:{address[1]} is free")


def _aggregator(url: str, node: str, credentials: Credentials) -> Finding:
    """Push an empty report as the agent would."""
    body = schema.encode(schema.NodeReport(node, time.time_ns(), []))
    with AggregatorClient(url, credentials) as client:
        try:
            answer = client.post(PATH, body, schema.CONTENT_TYPE, TIMEOUT_SECONDS)
        except Unreachable as error:
            return Finding("aggregator", FAILED, f"{url}: {client.explain(error)}")
        if answer.status != 200:
            return Finding("aggregator", FAILED, f"{url}: HTTP {answer.status}: {answer.text[:200]}")
        warning = (
            "; the token is sent in clear text: use https, unless a proxy does"
            if client.token_is_exposed
            else ""
        )
        return Finding("aggregator", OK, f"{url}: accepts this node's reports{warning}")


def _gpus(agent) -> list[Finding]:
    findings, any_up = [], False
    for report in agent.gpus.statuses():
        if report.up:
            any_up = True
            seen = report.full.sample.gpus if report.full else []
            models = ", ".join(sorted({gpu.model or "unnamed" for gpu in seen})) or "no GPU"
            problem = f"; last problem: {report.problem}" if report.counts["problems"] else ""
            lost = sum(gpu.lost for gpu in seen)
            detail = f"{len(seen)} ({models})" + (f", {lost} lost" if lost else "") + problem
            findings.append(
                Finding(f"driver {report.name}", FAILED if lost else OK, clean_text(detail, DETAIL_MAX))
            )
        else:
            why = (
                report.problem.removeprefix("nothing to drive: ") or f"no answer within {TIMEOUT_SECONDS:g} s"
            )
            status = NONE if report.absent else FAILED
            findings.append(Finding(f"driver {report.name}", status, clean_text(why, DETAIL_MAX)))
    families = Families("node")
    try:
        agent.gpus.collect(families)
    except NoData as error:
        return [*findings, Finding("GPUs", NONE, str(error))]
    kinds = {s.labels["kind"]: int(s.value) for f in families for s in f.samples if s.name == "goodput_gpus"}
    return [*findings, _counted(kinds, agent.settings.gpus_expected, any_up)]


def _counted(kinds: dict[str, int], declared: int | None, any_up: bool) -> Finding:
    """GPUs found against GPUs expected: `declared` with --gpus, else those on the PCI bus."""
    expected, seen = kinds.get("expected"), kinds.get("seen", 0)
    if seen and declared is None and not expected:
        why = "no PCI bus is visible" if expected is None else "the PCI bus shows none"
        return Finding("GPUs", OK, f"{seen} found, expected unknown: {why} (declare the number with --gpus)")
    if expected is None:
        return Finding("GPUs", NONE, "none found, expected unknown: no PCI bus is visible")
    detail = f"{seen} found, {expected} expected"
    if seen < expected:
        if not any_up:
            detail += ": no driver answers (is the NVIDIA or AMD library visible to this process?)"
        return Finding("GPUs", FAILED, detail)
    if seen > expected and declared is not None:
        return Finding("GPUs", FAILED, f"{detail}: more than --gpus declares; a lost GPU would go unnoticed")
    if seen > expected:
        return Finding("GPUs", OK, f"{detail}: more than the PCI bus shows (declare the number with --gpus)")
    return Finding("GPUs", OK, detail)


def _ranks(agent) -> Finding:
    try:
        agent.ranks.poll()
        ranks = agent.ranks.living()
    except NoData as error:
        return Finding("ranks", NONE, str(error))
    except CollectorError as error:
        return Finding("ranks", FAILED, clean_text(f"{error}", DETAIL_MAX))
    runs = sorted({run for run, _ in ranks})
    detail = f"{len(ranks)} alive" + (
        f", of {', '.join(runs[:4])}" + (" …" if len(runs) > 4 else "") if runs else ""
    )
    return Finding("ranks", OK if ranks else NONE, clean_text(detail, DETAIL_MAX))


def _collector(name: str, collector) -> Finding:
    families = Families("node")
    try:
        collector.collect(families)
    except NoData as error:
        return Finding(name, NONE, clean_text(f"{error}", DETAIL_MAX))
    except Exception as error:
        return Finding(name, FAILED, clean_text(f"{error}" or type(error).__name__, DETAIL_MAX))
    return Finding(name, OK, f"{sum(len(family.samples) for family in families)} series")
