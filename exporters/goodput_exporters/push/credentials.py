"""What the agent shows the aggregator of itself: a bearer token, a client certificate; and whom it believes.

In: files, read anew when they change, since tokens and certificates are rotated. Out: headers and a TLS context, or
Unreachable with the file and what is wrong with it; and why no answer came, in words that say what to do. What is in the files goes nowhere else: not into a log, an error, a
series or the command line, which everybody on a node can read.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from goodput_exporters.push.lean_httpx import httpx

TOKEN_BYTES_MAX = 1 << 12
NAMES_MAX, PROBE_SECONDS_MAX = 8, 2.0


class Unreachable(Exception):
    """No usable answer came. `reason` is one word for a counter."""

    def __init__(self, text: str, reason: str = "answer"):
        super().__init__(text)
        self.reason = reason


class Credentials(NamedTuple):
    """Files' names; None for what there is none of."""

    token_file: str | None = None
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    def headers(self) -> dict[str, str]:
        """The header with the token. Raises Unreachable."""
        return {"Authorization": f"Bearer {read_token(self.token_file)}"} if self.token_file else {}

    def context(self) -> ssl.SSLContext:
        """Believes the authorities of `ca_file`, or those that httpx knows, and shows the client's certificate. Raises Unreachable."""
        try:
            known = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None
            context = known or httpx.create_ssl_context()
            if self.client_cert:
                context.load_cert_chain(self.client_cert, self.client_key, password=_no_password)
        except (OSError, ValueError) as error:
            files = " ".join(filter(None, (self.ca_file, self.client_cert, self.client_key)))
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise Unreachable(f"certificates {files}: {why}", "tls") from None
        return context

    def mark(self) -> tuple:
        """Something that differs after a change of the files of certificates."""
        return tuple(map(_mark, (self.ca_file, self.client_cert, self.client_key)))


NONE_NEEDED = Credentials()


def explained(error: Exception, url: str, credentials: Credentials = NONE_NEEDED) -> str:
    """Why no answer came from an aggregator, and where it can be said, what is to be done."""
    text = str(error) or type(error).__name__
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text or "HTTP_REQUEST" in text:
        return f"{text}: it does not speak TLS; should its address begin with http://?"
    if url.startswith("http:") and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return (
            f"{text}: it speaks TLS, so its address begins with https://" if _shown(url, _anybody()) else text
        )
    if "certificate is not valid for" in text:
        names = _names_of(url, credentials)
        return f"{text}: it is for {names}" if names else text
    if "CERTIFICATE_VERIFY_FAILED" in text and ("issuer" in text or "self" in text):
        if credentials.ca_file:
            return f"{text}: its certificate is of none of the authorities in --ca-file {credentials.ca_file}"
        return f"{text}: its certificate is of no authority that is known here; name a file with its own by --ca-file"
    return text


def _names_of(url: str, credentials: Credentials) -> str:
    """The names on the certificate that the aggregator shows, if it is of an authority that is believed; else ''."""
    try:
        context = credentials.context()
    except Unreachable:
        return ""
    context.check_hostname = False
    names = [name for _, name in (_shown(url, context) or {}).get("subjectAltName", ())]
    return ", ".join(names[:NAMES_MAX]) + (" …" if len(names) > NAMES_MAX else "")


def _shown(url: str, context: ssl.SSLContext) -> dict | None:
    """The certificate that is shown at an address; without its content where anybody's will do. None where no TLS is spoken."""
    parts = urlsplit(url)
    address = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    try:
        plain = socket.create_connection(address, PROBE_SECONDS_MAX)
        with plain, context.wrap_socket(plain, server_hostname=parts.hostname) as spoken:
            return {"spoken": spoken.version(), **(spoken.getpeercert() or {})}
    except (OSError, ValueError):
        return None


def _anybody() -> ssl.SSLContext:
    """For a look that sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def read_token(path: str) -> str:
    """The token in a file. Raises Unreachable, which says nothing of what is in it."""
    try:
        with open(path, "rb") as file:
            token = file.read(TOKEN_BYTES_MAX).strip().decode("ascii")
    except OSError as error:
        raise Unreachable(f"token file {path}: {error.strerror}", "token") from None
    except UnicodeDecodeError:
        raise Unreachable(f"token file {path}: what is in it is no token", "token") from None
    if not token or not token.isprintable() or " " in token:
        raise Unreachable(f"token file {path}: no token in it, or more than one word", "token")
    return token


def _mark(path: str | None) -> tuple | None:
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _no_password() -> str:
    raise ValueError("the key is encrypted; want one that is not")
