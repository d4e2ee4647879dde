"""`goodput serve` with the options of a stream: what makes no sense is refused with what to give instead."""

import pytest

from goodput.cli import main

STREAM, LEDGER = ("--stream", "nats://127.0.0.1:1"), ("--ledger", "postgresql://h/d")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--role", "ingest"), "--role needs a stream: give --stream nats://HOST:4222"),
        (STREAM, "a ledger that several aggregators share: --ledger postgresql://HOST/DATABASE"),
        ((*STREAM, "--ledger", "sqlite:///x.db"), "a ledger that several aggregators share"),
        ((*STREAM, *LEDGER, "--role", "ingest"), "--role ingest has no ledger: leave --ledger out"),
        ((*STREAM, *LEDGER, "--stream-ca", "/none"), "--stream-ca /none: cannot be read"),
        (
            ("--stream", "nats://10.0.0.1:4222", *LEDGER),
            "is not loopback and nothing authenticates this process",
        ),
        (
            ("--stream", "nats://127.0.0.1:1,tls://h:4222", *LEDGER),
            "tls://h:4222 is not loopback and nothing",
        ),
        (
            ("--stream", "nats://me:secret@h:1", *LEDGER),
            "--stream nats://h:1: without TLS credentials and reports",
        ),
    ],
)
def test_options_that_contradict_each_other(options, text, capsys):
    assert main(["serve", "--listen", "127.0.0.1:0", *options]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("url", ["nats://me:secret@10.0.0.1:1", "tls://me:secret@10.0.0.1:1"])
def test_trusted_network_takes_servers_without_tls(url, capsys):
    """The options are accepted: what is refused comes after them."""
    options = ["--stream", url, *LEDGER, "--insecure-http", "--stream-ca", "/none"]
    assert main(["serve", "--listen", "127.0.0.1:0", *options]) == 2
    assert "--stream-ca /none: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    ["10.0.0.1:4222", "http://h:4222", "nats://", "nats://h:port", "nats://h/path", "nats://me:pa%ss@/", ","],
)
def test_addresses_that_are_none(url, capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--stream", url])
    error = capsys.readouterr().err
    assert "expected an address such as nats://10.0.0.1:4222" in error and "pa%ss" not in error


@pytest.mark.parametrize(
    "options",
    [("--partitions", "0"), ("--partitions", "257"), ("--stream-replicas", "6"), ("--role", "both")],
)
def test_values_out_of_bounds(options, capsys):
    with pytest.raises(SystemExit):
        main(["serve", *STREAM, *LEDGER, *options])
    assert options[0] in capsys.readouterr().err
