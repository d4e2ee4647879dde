"""`goodput token`: create, list, revoke."""

import json
import os
import re
import stat
import sys

import pytest

from goodput import cli
from goodput.access.responses import Refusal
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import TEXT


@pytest.fixture
def token(tmp_path, capsys):
    """Calls the command; returns (status, output, errors)."""

    def call(*words: str):
        try:
            status = cli.main(["token", *words, "--file", str(tmp_path / "tokens.json")])
        except SystemExit as refused:
            status = refused.code
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def test_token_is_shown_once(token, tmp_path):
    status, out, err = token("create", "--scope", "read", "--name", "ada", "--run", "a*", "--expires", "90d")
    assert (status, err) == (0, "") and TEXT.fullmatch(out.strip()) and out.count("\n") == 1
    assert stat.S_IMODE(os.stat(tmp_path / "tokens.json").st_mode) == 0o600
    access = TokenCache(tmp_path / "tokens.json").lookup(out.strip().encode())
    assert (access.name, access.scopes, access.runs) == ("ada", ("read",), ("a*",))
    for words in (("list",), ("list", "--json")):
        status, shown, _ = token(*words)
        assert status == 0 and "ada" in shown and "a*" in shown
        assert out.strip() not in shown and out.strip().rpartition("_")[2] not in shown
    assert re.search(r" ada +a\* +any +20\d\d-\d\d-\d\d \d\d:\d\dZ +20", token("list")[1])
    (entry,) = json.loads(token("list", "--json")[1])
    assert entry["expires"] - entry["created"] == 90 * 86_400 and "sha256" not in entry


def test_revoking_by_name_and_by_id(token, tmp_path):
    texts = [token("create", "--scope", "ingest", "--name", name)[1].strip() for name in ("a", "b", "b", "c")]
    before = (tmp_path / "tokens.json").read_text()
    status, out, err = token("revoke", "--name", "b")
    assert (status, out) == (1, "") and "2 tokens are named 'b'" in err and "--all" in err
    assert all(text.split("_")[2] in err for text in texts[1:3])
    assert (tmp_path / "tokens.json").read_text() == before
    assert token("revoke", "--name", "b", "--all")[0] == 0
    number = texts[0].split("_")[2]
    status, out, _ = token("revoke", "--id", number)
    assert (status, out) == (0, f"revoked {number} (ingest, a)\n")
    cache = TokenCache(tmp_path / "tokens.json")
    for text in texts[:3]:
        with pytest.raises(Refusal):
            cache.lookup(text.encode())
    assert cache.lookup(texts[3].encode()).name == "c"
    status, _, err = token("revoke", "--name", "nobody")
    assert status == 1 and "no token 'nobody'" in err


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (("create", "--scope", "admin", "--name", "a"), 2, "invalid choice"),
        (("create", "--scope", "read"), 2, "--name"),
        (("create", "--scope", "read", "--name", "two words"), 2, "expected 1 to 64"),
        (("create", "--scope", "read", "--name", "a", "--tenant", "a/b"), 2, "tenant"),
        (("create", "--scope", "read", "--name", "a", "--run", "*a*a*a*a*a*"), 2, "at most 4 stars"),
        (("create", "--scope", "read", "--name", "a", "--expires", "soon"), 2, "such as 90d"),
        (("create", "--scope", "read", "--name", "a", "--expires", "0d"), 2, "such as 90d"),
        (
            ("create", "--scope", "ingest", "--name", "a", "--gpus", "8"),
            2,
            "of a token of scope ingest for some runs",
        ),
        (
            ("create", "--scope", "read", "--name", "a", "--run", "b", "--gpus", "8"),
            2,
            "of scope ingest for some",
        ),
        (
            ("create", "--scope", "ingest", "--name", "a", "--run", "b", "--gpus", "0"),
            2,
            "1 to 16777216 GPUs",
        ),
        (("list",), 1, "No such file"),
        (("revoke",), 2, "one of the arguments"),
        (("revoke", "--name", "a"), 1, "no token"),
        (("revoke", "--name", "a", "--all"), 1, "no token"),
        (("revoke", "--id", "a", "--all"), 2, "--all needs --name"),
        (
            ("create", "--scope", "metrics", "--name", "a", "--run", "b"),
            2,
            "of scope metrics covers all runs",
        ),
        (("create", "--scope", "read", "--name", ""), 2, "empty value; is a variable unset?"),
        (("create", "--scope", "read", "--name", "a", "--file", ""), 2, "empty value; is a variable"),
        (("create", "--scope", "read", "--name", "a", "--output", "/nowhere/token"), 1, "No such file"),
        (("create", "--scope", "read", "--name", "a", "--output", "/dev/null"), 1, "not a regular file"),
    ],
)
def test_invalid_calls_give_a_reason_and_no_file(token, tmp_path, words, status, complaint):
    found = token(*words)
    assert found[0] == status and complaint in found[2] and found[1] == "" and "Traceback" not in found[2]
    assert not list(tmp_path.iterdir())


def test_readable_file_gives_a_warning(token, tmp_path):
    token("create", "--scope", "read", "--name", "a")
    os.chmod(tmp_path / "tokens.json", 0o644)
    assert "every user of this machine may read it" in token("list")[2]


def test_broken_file_is_not_overwritten(token, tmp_path):
    (tmp_path / "tokens.json").write_text("{")
    status, out, err = token("create", "--scope", "read", "--name", "a")
    assert (status, out) == (1, "") and "not JSON" in err and (tmp_path / "tokens.json").read_text() == "{"


def test_output_file_has_mode_0600(token, tmp_path):
    out, words = tmp_path / "read-token", ("create", "--scope", "read", "--name", "a", "--output")
    previous = os.umask(0)
    try:
        status, printed, err = token(*words, str(out))
    finally:
        os.umask(previous)
    assert status == 0 and err == "" and str(out) in printed and "goodput_" not in printed
    first = out.read_text()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    cache = TokenCache(tmp_path / "tokens.json")
    assert cache.lookup(first.strip().encode()).name == "a"
    os.chmod(out, 0o644)
    assert token(*words, str(out))[0] == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o640, "as its group may; the rest of the machine may not"
    second = out.read_text()
    assert second != first and cache.lookup(second.strip().encode())
    assert token(*words, str(tmp_path / "tokens.json"))[0] == 1
    (tmp_path / "tokens.json").write_text("{")
    assert token(*words, str(out))[0] == 1 and out.read_text() == second, "what was there stays"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["read-token", "tokens.json"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_token_redirected_to_a_readable_file_gives_a_warning(token, tmp_path, monkeypatch, mode):
    out = tmp_path / "read-token"
    out.touch()
    os.chmod(out, mode)
    with out.open("w") as file, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", file)
        status = cli.main(
            ["token", "create", "--scope", "read", "--name", "a", "--file", f"{tmp_path}/tokens.json"]
        )
    assert status == 0 and TEXT.fullmatch(out.read_text().strip())
    err = token("list")[2]
    assert ("chmod 600 it, or use --output FILE" in err) == (mode == 0o644)
