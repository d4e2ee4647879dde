"""The TLS certificate of a server, replaced without a restart when its files change."""

from __future__ import annotations

import ssl

from goodput.access.certificate_expiry import earliest_expiry
from goodput.access.listening import OptionError
from goodput.access.reloading import ReloadedFiles


class Certificate(ReloadedFiles):
    """A server's TLS context; new connections use the files' content as of the last `reload`. Raises OptionError.

    `expiry` is the unix time at which it or the first certificate of its chain expires, None if that is unknown.
    """

    def __init__(self, cert: str, key: str, client_ca: str | None = None):
        super().__init__(cert, key)
        self.context, self.expiry = _server_context(cert, key, client_ca), earliest_expiry(cert)
        self._warn_of_permissions()

    def _load(self) -> None:
        # Tried on a context of its own first: half of a new pair must not spoil the one in use.
        cert, key = self._paths
        _server_context(cert, key, None)
        self.context.load_cert_chain(cert, key, password=refuse_password)
        self.expiry = earliest_expiry(cert)


def _server_context(cert: str, key: str, client_ca: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    options = f"--tls-cert {cert} with --tls-key {key}"
    try:
        _check_readable(("--tls-cert", cert), ("--tls-key", key))
        context.load_cert_chain(cert, key, password=refuse_password)
        if client_ca:
            options = f"--client-ca {client_ca}"
            context.load_verify_locations(cafile=client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OptionError:
        raise
    except (OSError, ValueError) as error:
        raise OptionError(f"{options}: {_describe(error)}") from None
    return context


def _check_readable(*files: tuple[str, str]) -> None:
    """Raise OptionError that names the file of a pair that cannot be opened; OpenSSL's error does not say which."""
    for option, path in files:
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise OptionError(f"{option} {path}: {error.strerror}") from None


def _describe(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a certificate and its key ({error.reason or error})"
    return getattr(error, "strerror", None) or str(error)


def refuse_password() -> str:
    """Password callback: without one OpenSSL would prompt on the terminal."""
    raise ValueError("the key is encrypted; decrypt it first")
