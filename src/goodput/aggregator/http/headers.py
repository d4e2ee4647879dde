"""Response headers that restrict what a browser does with an answer, and access to request headers.

The page shows names from pushed reports, so browsers may run and load only this server's files.
"""

from __future__ import annotations

from goodput.access.responses import SECURITY_HEADERS

Headers = list[tuple[bytes, bytes]]

SECURITY: Headers = [
    *((name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
# Without includeSubDomains: other hosts of the domain are not ours.
HSTS = (b"strict-transport-security", b"max-age=31536000")
# For the page; its forms (sign in, sign out) go to this server only.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


def with_security_headers(headers: Headers, is_tls: bool) -> Headers:
    """An answer's headers with those of SECURITY that it does not set itself."""
    present = {name for name, _ in headers}
    added = [header for header in SECURITY if header[0] not in present]
    return [*headers, *added, HSTS] if is_tls else [*headers, *added]


def header_values(headers: Headers, name: bytes) -> list[bytes]:
    """All values of a header, by its lower-case name."""
    return [value for key, value in headers if key == name]
