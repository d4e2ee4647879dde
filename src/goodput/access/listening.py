"""Where one may listen, and with which certificate.

In: an address, and what of authentication there is. Out: nothing, or Refused with what to do about it; a TLS context
whose certificate follows its files.

The rule: loopback needs nothing. Any other address needs that somebody is asked who they are (a token, or a client's
certificate), and that tokens do not travel in the clear, unless `insecure_http` says that a proxy in front speaks TLS
or the network is trusted.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import ssl

from goodput.access.token_cache import mark_of
from goodput.access.token_file import warning

log = logging.getLogger("goodput.access")


class Refused(ValueError):
    """An address or a set of options that is not safe; the text says what to do."""


def check(arguments: argparse.Namespace, host: str, *, only_metrics: bool = False) -> None:
    """Raise Refused for options that contradict each other, or an address that they do not suffice for.

    `only_metrics` is said by who serves nothing else; then --metrics-public is a word for everything there is.
    """
    if bool(arguments.tls_cert) != bool(arguments.tls_key):
        raise Refused("--tls-cert and --tls-key go together")
    if arguments.client_ca and not arguments.tls_cert:
        raise Refused("--client-ca needs --tls-cert and --tls-key: certificates are shown within TLS")
    if is_loopback(host):
        return
    is_public = only_metrics and arguments.metrics_public
    if not (arguments.tokens or arguments.client_ca or is_public):
        also = " Or, for a network that is yours alone, --metrics-public." if only_metrics else ""
        raise Refused(
            f"--listen {host}: whoever reaches this address would be let in without being asked. Either\n"
            "  --tokens FILE with --tls-cert and --tls-key: a token for each who pushes or reads "
            "(goodput token create --help); or\n"
            "  --client-ca FILE with --tls-cert and --tls-key: only who has a certificate of that authority; or\n"
            f"  listen on loopback, behind a proxy on this host that authenticates.{also}"
        )
    if not (arguments.tls_cert or arguments.insecure_http or is_public):
        raise Refused(
            f"--listen {host}: without --tls-cert and --tls-key tokens would travel in the clear. Where a proxy in "
            "front speaks TLS, or the network is trusted, say so with --insecure-http"
        )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(netloc: str) -> str:
    """The host in `HOST`, `HOST:PORT` or `[IPV6]:PORT`, in lower case; '' where it is none of these."""
    if netloc.startswith("["):
        host, _, more = netloc[1:].partition("]")
        return host.lower() if more[:1] in ("", ":") else ""
    return netloc.partition(":")[0].lower()


class Certificate:
    """A server's TLS context; new connections get what is in the files at the last `look`. Raises Refused."""

    def __init__(self, cert: str, key: str, client_ca: str | None = None):
        self._cert, self._key = cert, key
        self.errors, self.is_failing = 0, False
        self._failure: tuple | None = None
        self._mark = self._marks()
        self.context = _context(cert, key, client_ca)
        self._warn()

    def look(self) -> None:
        """Take a certificate that was replaced.

        One that cannot be used is counted once and tried again at each look, and the old one kept; `is_failing` till then.
        """
        mark = self._marks()
        if mark == self._mark and not self.is_failing:
            return
        try:
            # Tried on a context of its own: half of a new pair must not spoil the one that is served.
            _context(self._cert, self._key, None)
            self.context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (Refused, OSError, ValueError) as error:
            self.is_failing, before, self._failure = True, self._failure, (mark, str(error))
            if self._failure != before:
                self.errors += 1
                log.error("%s; the certificate from before is served on", error)
            return
        self._mark, self._failure = mark, None
        self._warn()
        if self.is_failing:
            self.is_failing = False
            log.warning("certificate %s: can be used again, and is served", self._cert)

    def _warn(self) -> None:
        if problem := warning(self._key):
            log.warning("%s", problem)

    def _marks(self) -> tuple:
        return mark_of(self._cert), mark_of(self._key)


def certificate(arguments: argparse.Namespace) -> Certificate | None:
    """The certificate that the options name. Raises Refused."""
    if not arguments.tls_cert:
        return None
    return Certificate(arguments.tls_cert, arguments.tls_key, arguments.client_ca)


def _context(cert: str, key: str, client_ca: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise Refused(f"--tls-cert {cert} with --tls-key {key}: {_why(error)}") from None
    if client_ca:
        try:
            context.load_verify_locations(cafile=client_ca)
        except (OSError, ValueError) as error:
            raise Refused(f"--client-ca {client_ca}: {_why(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no certificate and key that belong together ({error.reason or error})"
    return getattr(error, "strerror", None) or str(error)


def _no_password() -> str:
    """Instead of asking on a terminal that is not there."""
    raise ValueError("the key is encrypted; want one that is not")
