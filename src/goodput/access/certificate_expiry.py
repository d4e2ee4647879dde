"""When the certificates of a PEM file expire: Python's ssl reads this of a peer's certificate, not of one's own.

A certificate (RFC 5280, section 4.1) is SEQUENCE { tbsCertificate, ... }, and tbsCertificate is SEQUENCE { version [0]
OPTIONAL, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, ... }, in DER.
"""

from __future__ import annotations

import re
import ssl
from datetime import datetime, timezone

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)
_SEQUENCE, _VERSION = 0x30, 0xA0
# By tag: UTCTime, whose years from 50 on are of the last century (RFC 5280, section 4.1.2.5.1), and GeneralizedTime.
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


def earliest_expiry(path: str) -> float | None:
    """Unix time at which the first certificate of the file's chain expires; None for a file that cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = _PEM.findall(file.read(1 << 20))
        return min((_not_after(ssl.PEM_cert_to_DER_cert(one)) for one in found), default=None)
    except (OSError, ValueError, IndexError):
        return None


def _not_after(der: bytes) -> float:
    """Raises ValueError or IndexError for what is no certificate."""
    _, fields = _value(_value(der, 0, _SEQUENCE)[1], 0, _SEQUENCE)
    at = 0
    for _ in range(4 if fields[0] == _VERSION else 3):
        at, _ = _value(fields, at)
    _, validity = _value(fields, at, _SEQUENCE)
    end, _ = _value(validity, 0)
    _, text = _value(validity, end)
    moment = datetime.strptime(text.decode("ascii"), _TIMES.get(validity[end], "no time"))
    if validity[end] == 0x17 and moment.year >= 2050:
        moment = moment.replace(year=moment.year - 100)
    return moment.replace(tzinfo=timezone.utc).timestamp()


def _value(data: bytes, at: int, tag: int | None = None) -> tuple[int, bytes]:
    """Where the element at `at` ends, and its content. Raises ValueError where its tag is another or it is cut."""
    if tag is not None and data[at] != tag:
        raise ValueError(f"tag {data[at]:#x} instead of {tag:#x}")
    length, begin = data[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        length, begin = int.from_bytes(data[begin : begin + octets], "big"), begin + octets
    if begin + length > len(data):
        raise ValueError("cut")
    return begin + length, data[begin : begin + length]
