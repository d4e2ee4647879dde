"""`goodput node --check`: what the agent can measure on this node, what not, and why. Changes nothing on the node.

print(text(check(agent, ("127.0.0.1", 9470), None), colour=False))
"""

from __future__ import annotations

import os
import socket
import ssl
import textwrap
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple

from goodput.metrics import Families
from goodput.nccl.library import library
from goodput.wire import schema
from goodput.wire.identity import clean_text
from goodput_exporters.collector import NoData
from goodput_exporters.directory_lock import DirectoryLock
from goodput_exporters.gpu.gaps import gaps
from goodput_exporters.gpu.merge import current_gpus
from goodput_exporters.gpu.other_vendors import other_accelerators
from goodput_exporters.push.client import AggregatorClient
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials, Unreachable
from goodput_exporters.push.pusher import PATH

OK, NONE, FAILED, UNAVAILABLE = "ok", "none", "failed", "unavailable"
MARKS = {OK: ("ok", "32"), NONE: ("-", "2"), FAILED: ("FAILED", "31")}
WIDTH, MARK, WHAT = 80, 7, 22  # columns
SECOND_SAMPLE_SECONDS_MAX, POLL_SECONDS = 3.0, 0.02
DETAIL_MAX, NAMES_MAX = 500, 10
NO_SUBCODES = "NVLink errors (XID 144 to 149) are reported without their sub-codes; needs CAP_SYSLOG"
TIMEOUT_SECONDS = 3.0


class Finding(NamedTuple):
    """`status` is ok, none (nothing to measure, which may be right), failed or unavailable.

    unavailable  a GPU driver has no reading of it: `what` is "DRIVER: SUBJECT", `detail` is why
    """

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
        _await_second_samples(agent)
        findings += map(_driver, agent.gpus.statuses())
        findings += [_measure("GPUs", _gpus, agent), _measure("ranks", _ranks, agent), _plugin()]
        if agent.compat:
            findings.append(_measure("--compat", _dcgm_names, agent))
        if problem := agent.gpus.kernel_log_problem():
            findings.append(Finding("kernel log", NONE, f"{problem}: {NO_SUBCODES}"))
        others = (runner.collector for name, runner in agent.runners.items() if name not in ("ranks", "gpus"))
        findings += [_measure(collector.name, _series, collector) for collector in others]
        findings += [*_unavailable(agent), *_other_vendors(agent.settings.sysfs)]
    finally:
        agent.gpus.close()
    return findings


def _measure(what: str, measure: Callable[..., tuple[str, str]], subject) -> Finding:
    """The status and detail that `measure` returns, or why it failed."""
    try:
        status, detail = measure(subject)
    except NoData as error:
        status, detail = NONE, str(error)
    except Exception as error:
        status, detail = FAILED, str(error) or type(error).__name__
    return Finding(what, status, clean_text(detail, DETAIL_MAX))


def text(findings: list[Finding], colour: bool) -> str:
    """One paragraph per finding, within WIDTH columns; what drivers have no reading of; then how many failed."""
    lines = []
    for what, status, detail in findings:
        if status != UNAVAILABLE:
            mark, code = MARKS[status]
            first, *rest = _wrapped(f"{mark:<{MARK}}{what:<{WHAT}} ", detail, MARK + WHAT + 1)
            lines += [f"\033[{code}m{first[:MARK]}\033[0m{first[MARK:]}" if colour else first, *rest]
    if unavailable := [finding for finding in findings if finding.status == UNAVAILABLE]:
        lines += ["", "Not available here, and why:", *_unavailable_lines(unavailable)]
    failed = sum(finding.status == FAILED for finding in findings)
    lines.append(
        f"\n{failed} of {len(findings) - len(unavailable)} failed." if failed else "\nNothing failed."
    )
    return "\n".join(lines)


def _unavailable_lines(unavailable: list[Finding]) -> list[str]:
    """By driver; subjects of one reason share a paragraph."""
    lines, shown = [], ""
    subjects: dict[tuple[str, str], list[str]] = {}
    for what, _, why in unavailable:
        driver, _, subject = what.partition(": ")
        subjects.setdefault((driver, why), []).append(subject)
    for (driver, why), names in subjects.items():
        lines += [f"  {driver}"] if driver != shown else []
        lines += _wrapped("    ", f"{', '.join(filter(None, names))}: {why}" if any(names) else why, 6)
        shown = driver
    return lines


def _wrapped(start: str, detail: str, indent: int) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * indent)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(start + detail) or [start]


def _dcgm_names(agent) -> tuple[str, str]:
    served = len(agent.gpus.dcgm_families(agent.node))
    if missing := agent.gpus.dcgm_names_without_value(agent.node):
        names = ", ".join(missing[:NAMES_MAX]) + (
            f" and {len(missing) - NAMES_MAX} more" * (len(missing) > NAMES_MAX)
        )
        return OK if served else NONE, f"{served} of dcgm-exporter's names; without a value: {names}"
    return OK, f"all {served} of dcgm-exporter's names"


def _plugin() -> Finding:
    path = library()
    return Finding(
        "NCCL plugin", OK if path else NONE, path or "not built: its compilation failed at installation"
    )


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
    if (
        pages.status == port.status == FAILED
        and (pid := DirectoryLock(directory).holder())
        and _is_agent(listen)
    ):
        here = f"in use by the running agent, pid {pid}"
        return [
            Finding("rank pages", OK, f"{directory}: {here}"),
            Finding("listen", OK, f"{port.detail.rpartition(': ')[0]}: {here}"),
        ]
    return [pages, port]


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
    if pid := DirectoryLock(directory).holder():
        return Finding("rank pages", FAILED, f"{directory}: another agent already uses it, pid {pid}")
    may_write = os.access(directory, os.W_OK | os.X_OK)
    access = "and writable" if may_write else "but not writable: pages of dead ranks are not removed"
    owner = os.stat(directory).st_uid
    if owner not in (0, os.geteuid()):
        access += (
            f"; user {owner} owns it and may remove the pages of others: let root make it, see docs/deploy.md"
        )
    return Finding("rank pages", OK, f"{directory} is readable {access}")


def _listen(address: tuple[str, int]) -> Finding:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        return Finding("listen", FAILED, f"{address[0]}:{address[1]}: {why}")
    return Finding("listen", OK, f"{address[0]}:{address[1]} is free")


def _aggregator(url: str, node: str, credentials: Credentials) -> Finding:
    """Push an empty report as the agent would."""
    body = schema.encode(schema.NodeReport(node, time.time_ns(), []))
    with closing(AggregatorClient(url, credentials)) as client:
        try:
            answer = client.post(PATH, body, schema.CONTENT_TYPE, TIMEOUT_SECONDS)
        except Unreachable as error:
            return Finding("aggregator", FAILED, f"{url}: {client.explain(error)}")
        older = set(answer.versions) & set(schema.VERSIONS) if schema.VERSION not in answer.versions else ()
        if answer.status != 200 and not older:
            return Finding("aggregator", FAILED, f"{url}: HTTP {answer.status}: {answer.text[:200]}")
        warning = "; the token is sent in clear text: use https, unless a proxy does"
        warning = warning if client.token_is_exposed else ""
        if answer.status != 200:
            warning += f", in version {max(older)}: it is older than this agent"
        return Finding("aggregator", OK, f"{url}: accepts this node's reports{warning}")


def _driver(report) -> Finding:
    what = f"driver {report.name}"
    if not report.up:
        why = report.problem.removeprefix("nothing to drive: ") or f"no answer within {TIMEOUT_SECONDS:g} s"
        return Finding(what, NONE if report.absent else FAILED, clean_text(why, DETAIL_MAX))
    seen = report.full.sample.gpus if report.full else []
    models = ", ".join(sorted({gpu.model or "unnamed" for gpu in seen})) or "no GPU"
    lost = sum(gpu.lost for gpu in seen)
    source = f", by {report.full.sample.source}" if report.full and report.full.sample.source else ""
    detail = f"{len(seen)} ({models}){source}" + (f", {lost} lost" if lost else "")
    detail += f"; last problem: {report.problem}" if report.counts["problems"] else ""
    return Finding(what, FAILED if lost else OK, clean_text(detail, DETAIL_MAX))


def _await_second_samples(agent) -> None:
    """Some readings are of the time between two samples."""
    deadline = time.monotonic() + SECOND_SAMPLE_SECONDS_MAX
    while time.monotonic() < deadline:
        if all(report.counts["samples"] > 1 for report in agent.gpus.statuses() if report.up):
            return
        time.sleep(POLL_SECONDS)


def _unavailable(agent) -> list[Finding]:
    """What the drivers that answer have no reading of."""
    found = []
    for report in agent.gpus.statuses():
        source = report.full.sample.source if report.full else ""
        gpus = [gpu for gpu, _ in current_gpus(report, time.monotonic_ns())]
        name = f"{report.name}, by {source.partition(' ')[0]}" if source else report.name
        for gap in gaps(report.name, source, gpus):
            found.append(Finding(f"{name}: {gap.subject}", UNAVAILABLE, gap.why))
    return found


def _other_vendors(sysfs: str) -> list[Finding]:
    why = "seen on the PCI bus, and nothing else is read of it"
    found = other_accelerators(sysfs)
    return [Finding(f"no driver: {count} {name}", UNAVAILABLE, why) for name, count in sorted(found.items())]


def _gpus(agent) -> tuple[str, str]:
    any_up = any(report.up for report in agent.gpus.statuses())
    families = Families("node")
    agent.gpus.collect(families)
    kinds = {labels[0]: int(count) for labels, count in families.rows.get("goodput_gpus", ())}
    return _compare(kinds, agent.settings.gpus_expected, any_up)


def _compare(kinds: dict[str, int], declared: int | None, any_up: bool) -> tuple[str, str]:
    """GPUs found against GPUs expected: `declared` with --gpus, else those on the PCI bus."""
    expected, seen = kinds.get("expected"), kinds.get("seen", 0)
    if seen and declared is None and not expected:
        why = "no PCI bus is visible" if expected is None else "the PCI bus shows none"
        return OK, f"{seen} found, expected unknown: {why} (declare the number with --gpus)"
    if expected is None:
        return NONE, "none found, expected unknown: no PCI bus is visible"
    detail = f"{seen} found, {expected} expected"
    if seen < expected:
        hint = "" if any_up else ": no driver answers (is the NVIDIA or AMD library visible to this process?)"
        return FAILED, detail + hint
    if seen > expected and declared is not None:
        return FAILED, f"{detail}: more than --gpus declares; a lost GPU would go unnoticed"
    if seen > expected:
        detail += ": more than the PCI bus shows (declare the number with --gpus)"
    return OK, detail


def _ranks(agent) -> tuple[str, str]:
    agent.ranks.poll()
    ranks = agent.ranks.living()
    runs = sorted({run for run, _ in ranks})
    names = f", of {', '.join(runs[:4])}" + (" …" if len(runs) > 4 else "") if runs else ""
    return OK if ranks else NONE, f"{len(ranks)} alive{names}"


def _series(collector) -> tuple[str, str]:
    families = Families("node")
    collector.collect(families)
    return OK, f"{sum(map(len, families.rows.values()))} series"
