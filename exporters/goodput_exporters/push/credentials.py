"""The agent's credentials for the aggregator: a bearer token, a client certificate, trusted authorities.

All are files, read again when they change, since tokens and certificates are rotated. Their content never appears in
a log, an error or a series.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from goodput.access.certificate import refuse_password
from goodput.access.reloading import file_mark
from goodput_exporters.push.lean_httpx import httpx
from goodput_exporters.system.files import open_regular

TOKEN_BYTES_MAX = 1 << 12


class Unreachable(Exception):
    """No usable answer from the aggregator. `reason` is one word for a counter."""

    def __init__(self, text: str, reason: str = "answer"):
        super().__init__(text)
        self.reason = reason


class Credentials(NamedTuple):
    """Paths of files; None where there is none."""

    token_file: str | None = None
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    def headers(self) -> dict[str, str]:
        """The Authorization header. Raises Unreachable."""
        return {"Authorization": f"Bearer {read_token(self.token_file)}"} if self.token_file else {}

    def context(self) -> ssl.SSLContext:
        """Trusts `ca_file`, or httpx's default authorities, and presents the client certificate. Raises Unreachable."""
        try:
            custom = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None
            context = custom or httpx.create_ssl_context()
            if self.client_cert:
                context.load_cert_chain(self.client_cert, self.client_key, password=refuse_password)
        except (OSError, ValueError) as error:
            files = " ".join(filter(None, (self.ca_file, self.client_cert, self.client_key)))
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise Unreachable(f"certificates {files}: {why}", "tls") from None
        return context

    def mark(self) -> tuple:
        """A value that changes with the certificate files."""
        return tuple(path and file_mark(path) for path in (self.ca_file, self.client_cert, self.client_key))


NONE_NEEDED = Credentials()


def read_token(path: str) -> str:
    """The token in a file. Raises Unreachable, without the content."""
    try:
        with open_regular(path) as file:
            token = file.read(TOKEN_BYTES_MAX).strip().decode("ascii", "replace")
    except OSError as error:
        raise Unreachable(f"token file {path}: {error.strerror}", "token") from None
    if not token.isascii() or not token.isprintable() or len(token.split()) != 1:
        raise Unreachable(f"token file {path}: its content is not one ASCII word", "token")
    return token
