"""`goodput provision`: what a head and its nodes get, what a second call keeps, and its errors."""

import json
import os
import shutil
import stat
import subprocess
import tarfile

import pytest
import yaml

from goodput.access.certificate import Certificate
from goodput.access.token_file import changing, read
from goodput.access.tokens import digest
from goodput.cli import main

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="not installed: openssl")


class Provisioned:
    """The folder that stands for / on the head, and the head's private folder."""

    def __init__(self, root):
        self.root, self.etc, self.folder = root, root / "etc" / "goodput", root / "private"

    def call(self, *words: str) -> int:
        return main(["provision", *words, "--root", str(self.root), "--folder", str(self.folder)])

    def extracted(self, name: str) -> dict[str, bytes]:
        with tarfile.open(self.folder / f"{name}.tar") as tar:
            return {one.name: tar.extractfile(one).read() for one in tar if one.isfile()}

    def names(self, certificate) -> str:
        command = ["openssl", "x509", "-in", certificate, "-noout", "-ext", "subjectAltName"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def targets(self) -> list[str]:
        (group,) = yaml.safe_load((self.etc / "nodes.yml").read_text())
        return group["targets"]


@pytest.fixture
def cluster(tmp_path):
    made = Provisioned(tmp_path)
    assert made.call("head=10.0.0.1", "node001", "node002=node002.example", "node001") == 0
    return made


def test_each_node_has_its_own_token_and_certificate(cluster):
    valid = {token.name: token for token in read(cluster.etc / "tokens.json")}
    assert {name: token.scope for name, token in valid.items()} == {
        "prometheus": "read",
        "node001": "ingest",
        "node002": "ingest",
    }
    keys = set()
    for name in ("node001", "node002"):
        files = cluster.extracted(name)
        assert digest(files["etc/goodput/ingest-token"].strip()) == valid[name].sha256
        assert files["etc/goodput/ca.crt"] == (cluster.etc / "ca.crt").read_bytes()
        assert files["etc/goodput/node-tokens.json"] == (cluster.etc / "node-tokens.json").read_bytes()
        keys.add(files["etc/goodput/node.key"])
        unpacked = cluster.root / name
        unpacked.mkdir()
        for file in ("node.crt", "node.key"):
            (unpacked / file).write_bytes(files[f"etc/goodput/{file}"])
        (unpacked / "node.key").chmod(0o600)
        Certificate(str(unpacked / "node.crt"), str(unpacked / "node.key"))
        assert f"DNS:{name}," in cluster.names(unpacked / "node.crt")
        # What reads runs, or opens the series of all nodes, is on the head alone.
        held = b"".join(files.values())
        for secret in ("read-token", "metrics-token"):
            assert (cluster.etc / secret).read_bytes().strip() not in held
    assert len(keys) == 2
    assert "IP Address:10.0.0.1" in cluster.names(cluster.etc / "aggregator.crt")
    assert "DNS:node002.example" in cluster.names(cluster.folder / "node002.crt")


def test_modes_and_groups_keep_secrets(cluster):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in cluster.etc.iterdir() if path.is_file()}
    secrets = {"tokens.json", "node-tokens.json", "aggregator.key"}
    for_prometheus = {"read-token", "metrics-token"}
    assert modes == dict.fromkeys(secrets, 0o640) | dict.fromkeys(for_prometheus, 0o600) | dict.fromkeys(
        ("ca.crt", "aggregator.crt", "nodes.yml"), 0o644
    )
    assert stat.S_IMODE(cluster.folder.stat().st_mode) == 0o700
    for path in cluster.folder.iterdir():
        assert path.suffix == ".crt" or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    with tarfile.open(cluster.folder / "node001.tar") as tar:
        found = {one.name: (one.mode, one.uname, one.gname) for one in tar}
    assert {name for name, (_, _, group) in found.items() if group == "goodput"} == {
        f"etc/goodput/{name}" for name in ("ingest-token", "node.key", "node-tokens.json")
    }
    assert all(
        mode == (0o640 if group == "goodput" else 0o755 if name == "etc/goodput" else 0o644)
        and user == "root"
        for name, (mode, user, group) in found.items()
    )


def test_second_call_changes_no_secret(cluster, capsys):
    def secrets():
        found = {path.name: path.read_bytes() for path in (*cluster.etc.iterdir(), *cluster.folder.iterdir())
                 if path.is_file() and path.suffix != ".tar"}  # fmt: skip
        return found | {"1": cluster.extracted("node001"), "2": cluster.extracted("node002")}

    before = secrets()
    capsys.readouterr()
    assert cluster.call("head=10.0.0.1", "node001") == 0
    assert secrets() == before
    printed = capsys.readouterr().out
    assert "certificates made: 0, tokens made: 0" in printed and "to be copied now: none\n" in printed
    assert cluster.targets() == ["node001:9470", "node002:9470"]


def test_more_nodes_are_added(cluster, capsys):
    before = cluster.extracted("node001")
    capsys.readouterr()
    assert cluster.call("head=10.0.0.1", "node003", "--tenant", "vision") == 0
    assert "to be copied now: node003\n" in capsys.readouterr().out
    assert cluster.targets() == ["node001:9470", "node002:9470", "node003:9470"]
    assert cluster.extracted("node001") == before
    (token,) = [one for one in read(cluster.etc / "tokens.json") if one.name == "node003"]
    assert token.tenant == "vision"


def test_revoked_token_and_expiring_certificate_are_replaced(cluster, monkeypatch):
    old = cluster.extracted("node001")
    with changing(str(cluster.etc / "tokens.json")) as tokens:
        tokens[:] = [token for token in tokens if token.name != "node001"]
    monkeypatch.setenv("DAYS", "29")
    (cluster.folder / "node001.key").unlink()
    assert cluster.call("head=10.0.0.1") == 0
    short = cluster.extracted("node001")
    assert short["etc/goodput/ingest-token"] != old["etc/goodput/ingest-token"]
    assert short["etc/goodput/node.crt"] != old["etc/goodput/node.crt"]
    monkeypatch.delenv("DAYS")
    assert cluster.call("head=10.0.0.1") == 0
    new = cluster.extracted("node001")
    assert new["etc/goodput/node.crt"] != short["etc/goodput/node.crt"]
    assert new["etc/goodput/ingest-token"] == short["etc/goodput/ingest-token"]
    assert new["etc/goodput/ca.crt"] == old["etc/goodput/ca.crt"]


def test_other_names_make_another_certificate(cluster):
    kept = (cluster.folder / "node001.crt").read_bytes()
    assert cluster.call("head=10.0.0.1,head.example") == 0
    assert "DNS:head.example" in cluster.names(cluster.etc / "aggregator.crt")
    assert (cluster.folder / "node001.crt").read_bytes() == kept


def test_new_token_for_metrics_is_for_all_nodes(cluster, capsys):
    (cluster.etc / "metrics-token").unlink()
    capsys.readouterr()
    assert cluster.call("head=10.0.0.1") == 0
    assert "to be copied now: node001 node002\n" in capsys.readouterr().out


def test_removed_node_loses_token_files_and_target(cluster, capsys):
    assert cluster.call("head=10.0.0.1", "--remove", "node001") == 0
    assert cluster.targets() == ["node002:9470"]
    assert {token.name for token in read(cluster.etc / "tokens.json")} == {"prometheus", "node002"}
    assert list(cluster.folder.glob("node001*")) == []
    assert cluster.call("head=10.0.0.1", "--remove", "node001") == 1
    assert "--remove node001: no such node" in capsys.readouterr().err
    assert cluster.call("head=10.0.0.1", "node002", "--remove", "node002") == 1
    assert "--remove node002: it is also a node to provision" in capsys.readouterr().err
    assert cluster.targets() == ["node002:9470"]


def test_options_of_the_operator_stay(cluster, capsys):
    path = cluster.root / "etc" / "default" / "goodput-aggregator"
    ours = path.read_text()
    assert "--tls-cert /etc/goodput/aggregator.crt" in ours
    path.write_text('# mine\nGOODPUT_SERVE_OPTIONS=""\nGOODPUT_LEDGER=sqlite:////mine.db\n')
    assert cluster.call("head=10.0.0.1") == 0
    assert path.read_text() == f"# mine\n{ours}GOODPUT_LEDGER=sqlite:////mine.db\n"
    path.write_text('GOODPUT_SERVE_OPTIONS="--keep-steps 3"\n')
    capsys.readouterr()
    assert cluster.call("head=10.0.0.1") == 0
    assert path.read_text() == 'GOODPUT_SERVE_OPTIONS="--keep-steps 3"\n'
    assert "has options of its own, which stay; the aggregator needs: --listen" in capsys.readouterr().out


def test_slurm_gets_a_token_for_ended_jobs(cluster):
    assert cluster.call("head=10.0.0.1", "--slurm") == 0
    (token,) = [one for one in read(cluster.etc / "tokens.json") if one.name == "slurmctld"]
    assert token.scope == "ingest"
    assert digest((cluster.etc / "end-token").read_bytes().strip()) == token.sha256
    assert "GOODPUT_AGGREGATOR=https://head:9471\n" in (cluster.root / "etc/default/goodput-end").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["head", "node 1"], "host 'node 1': 'node 1' is not a host name"),
        (["head=a,,b"], "host 'head=a,,b': '' is not a host name"),
        (["10.0.0.1"], "begin with a name that other hosts resolve, as NAME=10.0.0.1"),
        (["head", "../../node"], "host '../../node'"),
    ],
)
def test_wrong_names_are_refused(cluster, words, text, capsys):
    before = sorted(cluster.root.rglob("*"))
    assert cluster.call(*words) == 2
    assert text in capsys.readouterr().err
    assert sorted(cluster.root.rglob("*")) == before


def test_missing_authority_key_is_not_replaced(cluster, capsys):
    """The operator may keep it elsewhere; another authority is one that no host knows."""
    (cluster.folder / "ca.key").unlink()
    authority = (cluster.folder / "ca.crt").read_bytes()
    assert cluster.call("head=10.0.0.1") == 0  # Nothing to sign.
    assert cluster.call("head=10.0.0.1", "node003") == 1
    error = capsys.readouterr().err
    assert "no certificate for node003: " in error and "private/ca.key is missing: put it back" in error
    assert (cluster.folder / "ca.crt").read_bytes() == authority
    assert "node003" not in (cluster.folder / "inventory.json").read_text()


def test_certificates_of_another_authority_are_used(cluster, tmp_path):
    """Put into the folder before the first call, without the authority's key."""
    other = Provisioned(tmp_path / "other")
    other.folder.mkdir(parents=True)
    for name in ("ca.crt", "head.crt", "head.key", "node001.crt", "node001.key"):
        shutil.copy(cluster.folder / name, other.folder)
    assert other.call("head", "node001") == 0
    assert (other.etc / "aggregator.crt").read_bytes() == (cluster.folder / "head.crt").read_bytes()
    assert other.extracted("node001")["etc/goodput/node.key"] == (cluster.folder / "node001.key").read_bytes()
    assert not (other.folder / "ca.key").exists()
    assert stat.S_IMODE(other.folder.stat().st_mode) == 0o700  # It was open to others before.


def test_other_tenant_and_damaged_inventory_are_errors(cluster, capsys):
    assert cluster.call("head=10.0.0.1", "node001", "--tenant", "vision") == 1
    assert "node001 has a token for all runs; revoke it first" in capsys.readouterr().err
    inventory = cluster.folder / "inventory.json"
    for damaged in ("{", "[]", json.dumps({"nodes": ["a b"], "certified": []})):
        inventory.write_text(damaged)
        assert cluster.call("head=10.0.0.1") == 1
        assert f"{inventory}: not written by `goodput provision`" in capsys.readouterr().err


def test_root_is_needed_for_etc(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["provision", "head", "--folder", str(tmp_path / "private")]) == 1
    assert "only root can write to /etc; with --root DIR" in capsys.readouterr().err
    assert not (tmp_path / "private").exists()


def test_groups_that_read_secrets_have_to_exist(monkeypatch, tmp_path, capsys):
    from goodput.provision import head

    def unknown(name):
        raise KeyError(name)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(head.grp, "getgrnam", unknown)
    assert main(["provision", "head", "--folder", str(tmp_path / "private")]) == 1
    assert "there is no group goodput, which reads its secrets: first install" in capsys.readouterr().err
    assert not (tmp_path / "private").exists()
