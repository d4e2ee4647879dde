"""When a server's certificate expires, read from its own file."""

import calendar
import subprocess
import time

import pytest
from support.servers.certificates import Authority

from goodput.access.certificate import Certificate
from goodput.access.certificate_expiry import earliest_expiry


def by_openssl(path) -> float:
    command = ["openssl", "x509", "-in", str(path), "-noout", "-enddate", "-dateopt", "iso_8601"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return calendar.timegm(time.strptime(text.removeprefix("notAfter="), "%Y-%m-%d %H:%M:%SZ"))


def test_expiry_agrees_with_openssl(tmp_path):
    cert, _ = Authority(tmp_path).issue("server")
    assert earliest_expiry(str(cert)) == by_openssl(cert) > time.time() + 86_400


@pytest.mark.parametrize("days", [1, 9_000, 30_000])
def test_every_form_of_time_is_read(tmp_path, days):
    """From 2050 on certificates have four digits of the year."""
    cert = tmp_path / "cert.pem"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    own = ["-days", str(days), "-subj", "/CN=x", "-keyout", str(tmp_path / "key"), "-out", str(cert)]
    subprocess.run([*new, *own], check=True, capture_output=True)
    assert earliest_expiry(str(cert)) == by_openssl(cert)


def test_first_of_a_chain_counts(tmp_path):
    authority = Authority(tmp_path)
    cert, _ = authority.issue("server")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(authority.cert.read_bytes() + b"\nsome text\n" + cert.read_bytes())
    assert earliest_expiry(str(chain)) == min(by_openssl(cert), by_openssl(authority.cert))


def test_unreadable_files_have_no_expiry(tmp_path):
    cert, _ = Authority(tmp_path).issue("server")
    lines = cert.read_text().splitlines()
    for number, text in enumerate(
        ("", "no certificate", "\n".join([lines[0], "!!!!", lines[-1]]), "\n".join([*lines[:3], lines[-1]]))
    ):
        path = tmp_path / str(number)
        path.write_text(text)
        assert earliest_expiry(str(path)) is None, text
    assert earliest_expiry(str(tmp_path / "missing")) is None


def test_replaced_certificate_has_its_own_expiry(tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    served = Certificate(str(cert), str(key))
    assert served.expiry == by_openssl(cert)
    command = [
        "openssl",
        "req",
        "-x509",
        "-key",
        str(key),
        "-days",
        "77",
        "-subj",
        "/CN=x",
        "-out",
        str(cert),
    ]
    subprocess.run(command, check=True, capture_output=True)
    served.reload()
    assert served.expiry == by_openssl(cert) > time.time() + 70 * 86_400
