"""`goodput token`: made once, listed without secrets, revoked."""

import json
import os
import stat

import pytest

from goodput import cli
from goodput.access.keeper import Denied, Keeper
from goodput.access.tokens import TEXT


@pytest.fixture
def token(tmp_path, capsys):
    """Calls the command; (status, output, complaints)."""

    def call(*words: str):
        try:
            status = cli.main(["token", *words, "--file", str(tmp_path / "tokens.json")])
        except SystemExit as refused:
            status = refused.code
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def test_a_token_is_shown_once(token, tmp_path):
    status, out, err = token("create", "--scope", "read", "--name", "ada", "--run", "a*", "--expires", "90d")
    assert (status, err) == (0, "") and TEXT.fullmatch(out.strip()) and out.count("\n") == 1
    assert stat.S_IMODE(os.stat(tmp_path / "tokens.json").st_mode) == 0o600
    access = Keeper(tmp_path / "tokens.json").access(out.strip().encode())
    assert (access.name, access.scopes, access.runs) == ("ada", ("read",), ("a*",))
    for words in (("list",), ("list", "--json")):
        status, shown, _ = token(*words)
        assert status == 0 and "ada" in shown and "a*" in shown
        assert out.strip() not in shown and out.strip().rpartition("_")[2] not in shown
    (entry,) = json.loads(token("list", "--json")[1])
    assert entry["expires"] - entry["created"] == 90 * 86_400 and "sha256" not in entry


def test_revoking_by_name_and_by_id(token, tmp_path):
    texts = [token("create", "--scope", "ingest", "--name", name)[1].strip() for name in ("a", "b", "b", "c")]
    assert token("revoke", "--name", "b")[0] == 0
    number = texts[0].split("_")[2]
    status, out, _ = token("revoke", "--id", number)
    assert (status, out) == (0, f"revoked {number} (ingest, a)\n")
    keeper = Keeper(tmp_path / "tokens.json")
    for text in texts[:3]:
        with pytest.raises(Denied):
            keeper.access(text.encode())
    assert keeper.access(texts[3].encode()).name == "c"
    status, _, err = token("revoke", "--name", "nobody")
    assert status == 1 and "no token 'nobody'" in err


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (("create", "--scope", "admin", "--name", "a"), 2, "invalid choice"),
        (("create", "--scope", "read"), 2, "--name"),
        (("create", "--scope", "read", "--name", "two words"), 2, "want 1 to 64"),
        (("create", "--scope", "read", "--name", "a", "--tenant", "a/b"), 2, "tenant"),
        (("create", "--scope", "read", "--name", "a", "--run", "*a*a*a*a*a*"), 2, "at most 4 stars"),
        (("create", "--scope", "read", "--name", "a", "--expires", "soon"), 2, "such as 90d"),
        (("create", "--scope", "read", "--name", "a", "--expires", "0d"), 2, "such as 90d"),
        (("list",), 1, "No such file"),
        (("revoke",), 2, "one of the arguments"),
        (("revoke", "--name", "a"), 1, "no token"),
    ],
)
def test_wrong_calls_say_why_and_make_no_file(token, tmp_path, words, status, complaint):
    found = token(*words)
    assert found[0] == status and complaint in found[2] and found[1] == "" and "Traceback" not in found[2]
    assert not list(tmp_path.iterdir())


def test_a_file_that_others_may_read_is_told_of(token, tmp_path):
    token("create", "--scope", "read", "--name", "a")
    os.chmod(tmp_path / "tokens.json", 0o644)
    assert "everybody on this machine may read it" in token("list")[2]


def test_a_broken_file_is_not_written_over(token, tmp_path):
    (tmp_path / "tokens.json").write_text("{")
    status, out, err = token("create", "--scope", "read", "--name", "a")
    assert (status, out) == (1, "") and "no JSON" in err and (tmp_path / "tokens.json").read_text() == "{"
