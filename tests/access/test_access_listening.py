"""Safe listen addresses, and certificates that follow their files."""

import argparse
import os
import shutil
import stat

import pytest
from support.servers.certificates import Authority
from support.servers.served import served

from goodput.access.certificate import Certificate
from goodput.access.listening import OptionError, check_options, is_loopback
from goodput.access.options import add_access_options


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_access_options(parser.add_argument)
    return parser.parse_args(words)


TOKENS, TLS, CA = ("--tokens", "t"), ("--tls-cert", "c", "--tls-key", "k"), ("--client-ca", "a")
PLAIN, PUBLIC = ("--insecure-http",), ("--metrics-public",)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_nothing(host):
    check_options(options(), host)
    check_options(options(), host, only_metrics=True)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.1", "head", "127.0.0.1.example.org", "::ffff:127.0.0.1"]
)
def test_other_addresses_need_authentication_and_tls(host):
    assert not is_loopback(host)
    for enough in ((*TOKENS, *TLS), (*TLS, *CA), (*TOKENS, *TLS, *CA), (*TOKENS, *PLAIN)):
        check_options(options(*enough), host)
        check_options(options(*enough), host, only_metrics=True)
    for too_little in ((), TLS, PLAIN, PUBLIC, (*PLAIN, *PUBLIC), (*TLS, *PUBLIC)):
        with pytest.raises(OptionError) as refused:
            check_options(options(*too_little), host)
        for way in ("--tokens", "--client-ca", "proxy"):
            assert way in str(refused.value)
    with pytest.raises(OptionError, match="--insecure-http"):
        check_options(options(*TOKENS), host)
    check_options(options(*PUBLIC), host, only_metrics=True)
    with pytest.raises(OptionError, match="--metrics-public"):
        check_options(options(), host, only_metrics=True)


def test_incomplete_tls_options_are_errors():
    for half in (TLS[:2], TLS[2:], CA, (*TOKENS, *CA)):
        with pytest.raises(OptionError, match=r"go together|needs --tls-cert"):
            check_options(options(*half), "127.0.0.1")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def test_certificate_is_replaced_only_by_a_valid_pair(tmp_path, authority, caplog):
    for number, name in enumerate(("one", "two")):
        for source, target in zip(authority.issue(name), (f"cert{number}", f"key{number}"), strict=True):
            shutil.copy(source, tmp_path / target)
    cert, key = tmp_path / "cert", tmp_path / "key"
    shutil.copy(tmp_path / "cert0", cert), shutil.copy(tmp_path / "key0", key)
    kept = Certificate(str(cert), str(key))
    assert served(kept) == "one"
    shutil.copy(tmp_path / "cert1", cert)
    kept.reload()
    assert (served(kept), kept.errors, kept.is_failing) == ("one", 1, True), "half of a pair"
    shutil.copy(tmp_path / "key1", key)
    kept.reload()
    assert (served(kept), kept.errors, kept.is_failing) == ("two", 1, False)
    assert caplog.records[-1].getMessage() == f"{cert}: usable again and in use"
    os.unlink(key)
    kept.reload()
    kept.reload()
    assert (served(kept), kept.errors, kept.is_failing) == ("two", 2, True) and len(caplog.records) == 3
    shutil.copy(tmp_path / "key1", key)
    os.chmod(key, 0o644)
    kept.reload()
    assert not kept.is_failing and "every user of this machine may read it" in caplog.text


def test_unusable_certificates_are_errors(tmp_path, authority):
    cert, key = map(str, authority.issue("one"))
    other = str(authority.issue("two")[1])
    nothing = tmp_path / "nothing"
    nothing.write_text("")
    for arguments, complaint in (
        ((cert, other), "not a certificate and its key"),
        ((str(nothing), key), "not a certificate and its key"),
        ((cert, str(tmp_path / "absent")), "^--tls-key /.*absent: No such file"),
        ((str(tmp_path / "absent"), key), "^--tls-cert /[^ ]*absent: No such file"),
        ((cert, key, str(nothing)), "--client-ca"),
        ((cert, key, str(tmp_path / "absent")), "--client-ca .*No such file"),
    ):
        with pytest.raises(OptionError, match=complaint):
            Certificate(*arguments)


def test_encrypted_key_is_an_error(tmp_path, authority):
    import subprocess

    cert, key = authority.issue("one")
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", str(key), "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(OptionError, match="encrypted"):
        Certificate(str(cert), str(locked))


def test_readable_key_gives_a_warning(authority, caplog):
    cert, key = authority.issue("one")
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
    Certificate(str(cert), str(key))
    assert not caplog.records
    os.chmod(key, 0o644)
    Certificate(str(cert), str(key))
    assert "every user of this machine may read it" in caplog.text
