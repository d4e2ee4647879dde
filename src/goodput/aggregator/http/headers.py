"""What every answer tells a browser not to do, and what a request's headers say.

In: an answer's headers. Out: the same with those of SECURITY that it does not set itself.

The page shows names that anybody who can push chose, so the browser is told to run and load nothing that is not ours;
an answer that is no page is told to be nothing but data.
"""

from __future__ import annotations

Headers = list[tuple[bytes, bytes]]

SECURITY: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (
        b"content-security-policy",
        b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_NAMES = frozenset(name for name, _ in SECURITY)
# Under TLS: for this host alone, since others of its domain may be no concern of ours.
HSTS = (b"strict-transport-security", b"max-age=31536000")
# A browser sends forms to us and nowhere else: for signing in and out.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


def secured(headers: Headers, is_tls: bool) -> Headers:
    there = {name for name, _ in headers}
    added = SECURITY if _NAMES.isdisjoint(there) else [one for one in SECURITY if one[0] not in there]
    return [*headers, *added, HSTS] if is_tls else [*headers, *added]


def value_of(headers: Headers, name: bytes) -> bytes | None:
    """The header's value, names being lower case as ASGI has them; None where it is absent or there twice."""
    found = None
    for key, value in headers:
        if key == name:
            if found is not None:
                return None
            found = value
    return found


def has(headers: Headers, name: bytes) -> bool:
    # A plain loop: pushes ask six times each, and a generator takes five times as long.
    for key, _ in headers:  # noqa: SIM110
        if key == name:
            return True
    return False
