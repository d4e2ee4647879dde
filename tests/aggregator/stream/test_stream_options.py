"""Options of a stream that are wrong are refused before anything is opened, with what to write instead."""

from pathlib import Path

import pytest

from goodput import cli
from goodput.aggregator.stream.options import check_stream_options, login_of

LEDGER = "--ledger=postgresql://db/goodput"


def refusal(*words: str) -> str:
    arguments = cli.parser().parse_args(["serve", *words])
    with pytest.raises(ValueError) as caught:
        check_stream_options(arguments)
    return str(caught.value)


def test_login_is_a_line_or_a_file_of_nats(tmp_path: Path):
    file = tmp_path / "login"
    file.write_text("goodput:pass:word\n")
    assert login_of(str(file)) == {"user": "goodput", "password": "pass:word"}
    file.write_text("-----BEGIN NATS USER JWT-----\n...")
    assert login_of(str(file)) == {"user_credentials": str(file)}


@pytest.mark.parametrize("content", [b"", b"goodput", b"goodput:", b":word", b"a:b\nc:d\n", b"\xff\xfe"])
def test_what_is_no_login_is_refused(tmp_path: Path, content):
    file = tmp_path / "login"
    file.write_bytes(content)
    text = refusal("--stream=nats://127.0.0.1", LEDGER, f"--stream-credentials={file}")
    assert (
        text
        == f"--stream-credentials {file}: expected one line USER:PASSWORD, or what `nsc generate creds` writes"
    )


def test_files_that_cannot_be_read_are_named(tmp_path: Path):
    gone = tmp_path / "gone"
    text = refusal("--stream=nats://127.0.0.1", LEDGER, f"--stream-credentials={gone}")
    assert text == f"--stream-credentials {gone}: No such file or directory"
    text = refusal("--stream=tls://127.0.0.1", LEDGER, f"--stream-ca={gone}")
    assert text == f"--stream-ca {gone}: cannot be read (No such file or directory)"
    (tmp_path / "ca").write_text("no certificate")
    text = refusal("--stream=tls://127.0.0.1", LEDGER, f"--stream-ca={tmp_path / 'ca'}")
    assert text == f"--stream-ca {tmp_path / 'ca'}: has no certificates (PEM)"


@pytest.mark.parametrize("option", ["stream-ca=a", "stream-credentials=a"])
def test_options_of_a_stream_need_one(option):
    text = refusal(f"--{option}")
    assert text == f"--{option.partition('=')[0]} needs a stream: give --stream nats://HOST:4222"
