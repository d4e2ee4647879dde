"""HTTP client for the aggregator: requests with credentials, bounded answers, and errors that say what to do.

An answer is read up to a bound and never decompressed, whatever it claims.

    client = AggregatorClient("https://head:9471", credentials)
    answer = client.post("/api/v1/ingest", body, schema.CONTENT_TYPE, seconds=5.0); client.close()
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from goodput.access.exchange_deadline import ExchangeDeadline
from goodput.access.listening import is_loopback
from goodput.wire import schema
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials, Unreachable
from goodput_exporters.push.lean_httpx import httpx

ANSWER_BYTES_MAX, REFUSAL_BYTES_MAX = 4 << 20, 1 << 16
NAMES_MAX, PROBE_SECONDS_MAX = 8, 2.0
_SUPPORTED = re.compile(r"report version \d+, this aggregator supports (\d+(?: and \d+)*)")
RETRY_SECONDS_MAX = 60.0


class Answer(NamedTuple):
    """`text` is the reason for people as one printable line: the body, the redirect or the status phrase.

    `versions` are the report versions that the aggregator says it supports, `retry_seconds` after how long it wants to be
    tried again, at most RETRY_SECONDS_MAX.
    """

    status: int
    body: bytes
    text: str
    versions: tuple[int, ...] = ()
    retry_seconds: float = 0.0

    def document(self) -> dict[str, Any] | None:
        """The body's JSON object; None if it is none, as from a server that is no aggregator."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def detail(self) -> str:
        """The API's error text, else `text`."""
        found = (self.document() or {}).get("detail")
        return printable(found) if isinstance(found, str) else self.text


class AggregatorClient:
    """`token_is_exposed` is true if the token would leave this machine without TLS."""

    def __init__(
        self,
        url: str,
        credentials: Credentials = NONE_NEEDED,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ):
        self.url, self._credentials = url.rstrip("/"), credentials
        self._answer_bytes_max = answer_bytes_max
        is_remote = url.startswith("http:") and not is_loopback(urlsplit(url).hostname or "")
        self.token_is_exposed = bool(credentials.token_file) and is_remote
        self._client: httpx.Client | None = None
        self._deadline = ExchangeDeadline()
        self._mark: tuple | None = None  # of the certificate files the client was made with

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def post(self, path: str, body: bytes, content_type: str, seconds: float) -> Answer:
        """Raises Unreachable if no usable answer arrives in time; see `explain`."""
        return self._request("POST", path, seconds, {"Content-Type": content_type}, body)

    def get(self, path: str, seconds: float) -> Answer:
        """As `post`."""
        return self._request("GET", path, seconds, {})

    def _request(
        self, method: str, path: str, seconds: float, headers: dict[str, str], body: bytes | None = None
    ) -> Answer:
        deadline_ns = time.monotonic_ns() + int(seconds * 1e9)
        request = {
            "content": body,
            "headers": {**headers, "Accept-Encoding": "identity", **self._credentials.headers()},
            "timeout": seconds,
            "extensions": {"trace": self._trace},
        }
        try:
            with (
                self._deadline.within(seconds) as is_late,
                self._connected().stream(method, self.url + path, **request) as response,
            ):
                content = _read(response, deadline_ns, self._answer_bytes_max)
        except (httpx.HTTPError, OSError) as error:
            if is_late():
                raise Unreachable(f"no whole answer within {seconds:g} s", "timeout") from error
            raise Unreachable(_text_of(error), _reason_of(error)) from error
        text = content
        if location := response.headers.get("location"):
            address = location.partition("?")[0].removesuffix(path)
            text = f"redirected: use {address} as the aggregator's address".encode()
        text = printable(text) or response.reason_phrase
        versions = report_versions(
            response.headers.get(schema.VERSIONS_HEADER, ""), response.status_code, text
        )
        retry_seconds = _retry_seconds(response.headers.get("retry-after", ""))
        return Answer(response.status_code, content, text, versions, retry_seconds)

    def _trace(self, event: str, info: dict) -> None:
        """Set the deadline of the connection, which later requests use too."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._deadline.connected(info["return_value"].get_extra_info("socket"))

    def explain(self, error: Unreachable) -> str:
        """Why there was no usable answer and, if it can be determined, what to do. May connect once more."""
        text, cause = str(error), error.__cause__
        if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text or "HTTP_REQUEST" in text:
            text += ": the server does not use TLS; should the address begin with http://?"
        elif isinstance(cause, httpx.RemoteProtocolError | httpx.ReadError) and self._needs_tls():
            text += ": the server uses TLS; the address must begin with https://"
        elif "certificate is not valid for" in text:
            if names := self._certificate_names():
                text += f": it is valid for {names}"
        elif "CERTIFICATE_VERIFY_FAILED" in text and ("issuer" in text or "self" in text):
            authority, advice = "a known authority", "; pass its authority with --ca-file"
            if ca_file := self._credentials.ca_file:
                authority, advice = f"an authority in --ca-file {ca_file}", ""
            text += f": its certificate is not signed by {authority}{advice}"
        return printable(text)

    def _connected(self) -> httpx.Client:
        """The client, replaced when the certificate files have changed. Raises Unreachable."""
        mark = self._credentials.mark()
        if self._client is None or mark != self._mark:
            # Without TLS, loading the certificate store would only cost 5 MiB.
            verify = self._credentials.context() if self.url.startswith("https:") else False
            self.close()
            self._client, self._mark = httpx.Client(verify=verify), mark
        return self._client

    def _needs_tls(self) -> bool:
        return self.url.startswith("http:") and _peer_certificate(self.url, _unverified()) is not None

    def _certificate_names(self) -> str:
        """The names on the aggregator's certificate, if a trusted authority signed it; else ''."""
        try:
            context = self._credentials.context()
        except Unreachable:
            return ""
        context.check_hostname = False
        certificate = _peer_certificate(self.url, context) or {}
        names = [name for _, name in certificate.get("subjectAltName", ())]
        return ", ".join(names[:NAMES_MAX]) + (" …" if len(names) > NAMES_MAX else "")


def run_path(run: str, part: str = "", **parameters: object) -> str:
    """The API's path of a run, or of a part of it such as `account`; parameters that are None are left out."""
    is_dots = run in (".", "..")  # Which a URL cannot have in its path.
    given = {name: value for name, value in parameters.items() if value is not None}
    query = urlencode({**({"run": run} if is_dots else {}), **given})
    path = f"/api/v1/runs/{'-' if is_dots else quote(run, safe='')}"
    return f"{path}{f'/{part}' if part else ''}{f'?{query}' if query else ''}"


def printable(text: bytes | str) -> str:
    """Text from another machine as one line without terminal control sequences."""
    text = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else " " for letter in text.strip())


def report_versions(header: str, status: int, text: str) -> tuple[int, ...]:
    """The supported report versions by an answer's header; the text of a refusal has them where the header is missing."""
    if status == 400 and not header and (supported := _SUPPORTED.fullmatch(text)):
        header = supported[1].replace(" and ", ",")
    found = header[:64].replace(",", " ").split()
    return tuple(int(one) for one in found if one.isascii() and one.isdigit())


def _retry_seconds(header: str) -> float:
    return min(float(header), RETRY_SECONDS_MAX) if header.isascii() and header.isdigit() else 0.0


def _read(response: httpx.Response, deadline_ns: int, bytes_max: int) -> bytes:
    """The raw body. Raises Unreachable if it is compressed, too long or too slow; that of a refusal is cut off instead."""
    if response.status_code != 200:
        return _read_refusal(response, deadline_ns)
    if "content-encoding" in response.headers:
        raise Unreachable("the answer is compressed (Content-Encoding), which was not requested")
    content = bytearray()
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > bytes_max:
            raise Unreachable(f"answer too long: more than {bytes_max} bytes")
        if time.monotonic_ns() > deadline_ns:
            raise Unreachable("answer too slow", "timeout")
    return bytes(content)


def _read_refusal(response: httpx.Response, deadline_ns: int) -> bytes:
    """The beginning of a text for people, as far as it comes: the status counts without it."""
    content = bytearray()
    if "content-encoding" not in response.headers:
        with suppress(httpx.TransportError):
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > REFUSAL_BYTES_MAX or time.monotonic_ns() > deadline_ns:
                    break
    return bytes(content[:REFUSAL_BYTES_MAX])


def _text_of(error: Exception) -> str:
    """Without the number that the system gave it: "Connection refused"."""
    return re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def _reason_of(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "timeout"
    if isinstance(error, httpx.TransportError | OSError):
        return "tls" if _is_tls_error(error) else "connect"
    return "answer"


def _is_tls_error(error: BaseException | None) -> bool:
    """httpx reports TLS errors only in the text or the exception's cause."""
    while error is not None:
        if isinstance(error, ssl.SSLError) or "SSL" in str(error) or "TLS" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _peer_certificate(url: str, context: ssl.SSLContext) -> dict | None:
    """The certificate served at this address, without fields if it is not verified. None if no TLS is spoken."""
    parts = urlsplit(url)
    address = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    try:
        plain = socket.create_connection(address, PROBE_SECONDS_MAX)
        with plain, context.wrap_socket(plain, server_hostname=parts.hostname) as connection:
            return connection.getpeercert() or {}
    except (OSError, ValueError):
        return None


def _unverified() -> ssl.SSLContext:
    """For a handshake that sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
