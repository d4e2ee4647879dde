"""The head's own files, and the archives of its nodes."""

from __future__ import annotations

import contextlib
import grp
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from goodput.provision.archive import write_archive
from goodput.provision.credentials import Secret, ensure_certificates, ensure_tokens, revoke_tokens, set_owner
from goodput.provision.hosts import Host, Inventory, ProvisionError
from goodput.provision.prometheus import write_configuration, write_targets

SERVE_OPTIONS = (
    "--listen 0.0.0.0:9471 --tokens /etc/goodput/tokens.json "
    "--tls-cert /etc/goodput/aggregator.crt --tls-key /etc/goodput/aggregator.key"
)
END_DEFAULTS = """\
# /etc/default/goodput-end, by `goodput provision`: read by EpilogSlurmctld.
GOODPUT_AGGREGATOR=https://{head}:9471
GOODPUT_TOKEN_FILE=/etc/goodput/end-token
GOODPUT_CA_FILE=/etc/goodput/ca.crt
"""
METRICS = "prometheus-metrics"  # the token that Prometheus sends to nodes
SHOWN_MAX = 20  # nodes in the report
INSTALL = {
    "goodput": "install the package goodput, or run systemd-sysusers with deploy/systemd/goodput.sysusers.conf",
    "slurm": "install Slurm, or leave out --slurm",
}


@dataclass(frozen=True)
class Plan:
    """What to provision.

    `root` is the folder that stands for / (for an image; owners stay then), `folder` has what the head keeps to itself:
    the authority's key, and keys, tokens and archives of nodes.
    """

    head: Host
    nodes: Sequence[Host]
    folder: Path
    root: Path
    source: Path  # has deploy/
    tenant: str | None = None
    remove: Sequence[str] = ()
    slurm: bool = False

    @property
    def etc(self) -> Path:
        return self.root / "etc" / "goodput"


def provision(plan: Plan) -> list[str]:
    """Make what is missing, expires or has changed; what is valid stays. Returns lines that say what was made.

    Raises ProvisionError, UpError, FileError and OSError. What was made before stays, and the next call goes on from there.
    """
    groups = _groups(plan)
    _make_folders(plan)
    inventory = Inventory.read(plan.folder / "inventory.json")
    if unknown := sorted(set(plan.remove) - inventory.nodes.keys()):
        raise ProvisionError(f"--remove {unknown[0]}: no such node in {inventory.path}")
    if both := sorted(set(plan.remove) & {node.name for node in plan.nodes}):
        raise ProvisionError(f"--remove {both[0]}: it is also a node to provision")
    inventory.nodes |= {node.name: node for node in plan.nodes}
    kept = [node for name, node in sorted(inventory.nodes.items()) if name not in plan.remove]
    certificates = ensure_certificates(
        plan.source / "deploy" / "certificates.sh",
        plan.folder,
        {host.name: host for host in (*kept, plan.head)}.values(),
        inventory,
    )
    _remove(plan, inventory)
    tokens = _make_tokens(plan, kept)
    inventory.write()
    write_configuration(plan.source, plan.etc / "prometheus", plan.head.name)
    write_targets(plan.etc / "nodes.yml", inventory.nodes)
    lines = _install_head(plan, groups)
    for node in kept:
        archive = plan.folder / f"{node.name}.tar"
        write_archive(archive, plan.folder, node.name, plan.head.name, plan.etc / "node-tokens.json")
    return [*_report(plan, kept, certificates, tokens), *lines]


def _groups(plan: Plan) -> dict[str, int | None]:
    """The ids of the groups that may read secrets; None below --root, where owners stay. Raises ProvisionError."""
    found: dict[str, int | None] = dict.fromkeys(("goodput", "prometheus", "slurm"))
    if plan.root != Path("/"):
        return found
    for name in ("goodput", "prometheus", *(["slurm"] if plan.slurm else [])):
        try:
            found[name] = grp.getgrnam(name).gr_gid
        except KeyError:
            if name == "prometheus":  # It may run on another host.
                continue
            raise ProvisionError(
                f"there is no group {name}, which reads its secrets: first {INSTALL[name]}"
            ) from None
    return found


def _make_folders(plan: Plan) -> None:
    plan.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    plan.folder.chmod(0o700)
    for path in (plan.root / "etc" / "default", plan.etc, plan.etc / "prometheus"):
        path.mkdir(mode=0o755, parents=True, exist_ok=True)


def _remove(plan: Plan, inventory: Inventory) -> None:
    """Revoke the tokens of nodes and delete their files."""
    if plan.remove:
        revoke_tokens(plan.etc / "tokens.json", plan.remove)
    for name in plan.remove:
        del inventory.nodes[name]
        ends = (".tar", ".token", *(() if name == plan.head.name else (".crt", ".key")))
        for end in ends:
            (plan.folder / f"{name}{end}").unlink(missing_ok=True)
        if name != plan.head.name:
            inventory.certified.pop(name, None)


def _make_tokens(plan: Plan, nodes: Sequence[Host]) -> list[str]:
    """Returns the names of tokens that were made."""
    given = {node.name for node in plan.nodes}
    secrets = [Secret("prometheus", "read", plan.etc / "read-token")]
    secrets += [
        Secret(
            node.name,
            "ingest",
            plan.folder / f"{node.name}.token",
            plan.tenant if node.name in given else None,
        )
        for node in nodes
    ]
    if plan.slurm:
        secrets.append(Secret("slurmctld", "ingest", plan.etc / "end-token"))
    made = ensure_tokens(plan.etc / "tokens.json", secrets)
    return made + ensure_tokens(
        plan.etc / "node-tokens.json", [Secret(METRICS, "metrics", plan.etc / "metrics-token")]
    )


def _install_head(plan: Plan, groups: dict[str, int | None]) -> list[str]:
    """Put certificate and options of the aggregator into place; returns what the operator has to do by hand."""
    name = plan.head.name
    copied = {"ca.crt": "ca.crt", f"{name}.crt": "aggregator.crt", f"{name}.key": "aggregator.key"}
    for source, target in copied.items():
        _copy(plan.folder / source, plan.etc / target, groups["goodput"])
    for file in ("tokens.json", "node-tokens.json"):
        set_owner(plan.etc / file, 0o640, groups["goodput"])
    for file in ("read-token", "metrics-token"):
        mode = 0o600 if groups["prometheus"] is None else 0o640
        set_owner(plan.etc / file, mode, groups["prometheus"])
    default = plan.root / "etc" / "default"
    lines = []
    if plan.root == Path("/") and groups["prometheus"] is None:
        lines.append(
            f"no group prometheus here: install Prometheus and run this again, or copy {plan.etc}/read-token, "
            "metrics-token, ca.crt and prometheus/ to its host"
        )
    lines += _set_option(default / "goodput-aggregator", "GOODPUT_SERVE_OPTIONS", SERVE_OPTIONS)
    if plan.slurm:
        set_owner(plan.etc / "end-token", 0o640, groups["slurm"])
        with (
            contextlib.suppress(FileExistsError),
            open(default / "goodput-end", "x", encoding="utf-8") as file,
        ):
            file.write(END_DEFAULTS.format(head=name))
    return lines


def _copy(source: Path, target: Path, group: int | None) -> None:
    """A certificate for everybody, a key for the group; the aggregator never reads half of one."""
    content = source.read_bytes()
    if target.exists() and target.read_bytes() == content:
        return
    part = target.with_name(f"{target.name}.new")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    if target.suffix == ".key":
        set_owner(part, 0o640, group)
    else:
        part.chmod(0o644)
    part.replace(target)


def _set_option(path: Path, variable: str, value: str) -> list[str]:
    """Set a variable of a file in /etc/default that is empty there; one that is set stays, and a line says so."""
    line = f'{variable}="{value}"'
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.findall(rf"(?m)^{variable}=.*$", text)
    if found and found[-1] == line:
        return []
    if found and found[-1] not in (f'{variable}=""', f"{variable}="):
        return [f"{path} has options of its own, which stay; the aggregator needs: {value}"]
    if found:
        text = text.replace(found[-1], line)
    else:
        text += ("" if not text or text.endswith("\n") else "\n") + line + "\n"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    return []


def _report(
    plan: Plan, nodes: Sequence[Host], certificates: Sequence[str], tokens: Sequence[str]
) -> list[str]:
    changed = [node.name for node in nodes if node.name in {*certificates, *tokens} or METRICS in tokens]
    shown = " ".join(changed[:SHOWN_MAX]) + (
        f" and {len(changed) - SHOWN_MAX} more" if len(changed) > SHOWN_MAX else ""
    )
    lines = [
        f"certificates made: {len(certificates)}, tokens made: {len(tokens)}; all others are valid and stay"
    ]
    lines += [f"removed: {name}; its token is revoked" for name in plan.remove]
    lines += [
        f"head {plan.head.name}: {plan.etc}, and Prometheus's configuration in {plan.etc / 'prometheus'}",
        f"nodes: {len(nodes)}, with an archive each as {plan.folder / 'NODE.tar'}; to be copied now: {shown or 'none'}",
        f"keep {plan.folder} to yourself: it has the authority's key and every node's token",
    ]
    return lines
