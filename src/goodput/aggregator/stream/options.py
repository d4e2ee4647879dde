"""The options of `goodput serve` that make it one of several over a stream."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from goodput.access.listening import is_loopback
from goodput.aggregator.stream.partitions import PARTITIONS, PARTITIONS_MAX

ROLES = ("all", "ingest", "aggregate")
STREAM_BYTES = 8 << 30
SCHEMES = ("nats", "tls")


def add_stream_options(
    parser: argparse.ArgumentParser, number: Callable[..., Callable], size: Callable[[str], int]
) -> None:
    """Add the group of options. `number` makes an argparse type for a number within bounds, `size` is one for bytes."""
    group = parser.add_argument_group("several aggregators over one stream (docs/scale.md)")
    add = group.add_argument
    add("--stream", type=stream_url, action="append", default=[], metavar="URL",
        help="NATS server with JetStream, such as nats://10.0.0.1:4222 or tls://user:password@host:4222; repeatable, or "
        "several with commas (default: none, this aggregator is the only one)")  # fmt: skip
    add("--role", choices=ROLES,
        help="with --stream: take pushes into the stream (ingest), serve runs from it (aggregate), or both (default: all)")  # fmt: skip
    add("--partitions", type=number(int, 1, PARTITIONS_MAX, " partitions"), default=PARTITIONS, metavar="N",
        help="into how many parts runs are divided among aggregators; the same for every process (default: %(default)s)")  # fmt: skip
    add("--stream-replicas", type=number(int, 1, 5, " replicas"), default=3, metavar="N",
        help="on how many servers the stream is stored, when it is made (default: %(default)s; 1 is for tests)")  # fmt: skip
    add("--stream-bytes", type=size, default=STREAM_BYTES, metavar="SIZE",
        help="how large the stream may become, when it is made; a full one takes no pushes (default: 8GiB)")  # fmt: skip
    add("--stream-credentials", metavar="FILE",
        help="file with USER:PASSWORD, or the credentials file of a NATS user; a password in the URL is in the list of processes")  # fmt: skip
    add("--stream-ca", metavar="FILE", help="certificates that sign those of the stream's servers (tls://)")


def stream_url(text: str) -> list[str]:
    """An argparse type: addresses of NATS servers."""
    urls = [url.strip() for url in text.split(",") if url.strip()]
    for url in urls:
        try:
            parts = urlsplit(url)
            is_url = (
                parts.scheme in SCHEMES and parts.hostname and (parts.port or 1) and not parts.path.strip("/")
            )
        except ValueError:
            is_url = False
        if not is_url:
            # Not the whole URL: it may have a password.
            shown = re.sub(r"//[^/]*@", "//***@", url)
            raise argparse.ArgumentTypeError(f"{shown!r}: expected an address such as nats://10.0.0.1:4222")
    if not urls:
        raise argparse.ArgumentTypeError("expected an address such as nats://10.0.0.1:4222")
    return urls


def check_stream_options(arguments: argparse.Namespace) -> None:
    """Raises ValueError."""
    if not arguments.stream:
        for option in ("role", "stream_credentials", "stream_ca"):
            if getattr(arguments, option):
                raise ValueError(
                    f"--{option.replace('_', '-')} needs a stream: give --stream nats://HOST:4222"
                )
        return
    _check_servers(arguments)
    role = arguments.role or "all"
    if role == "ingest":
        if arguments.ledger:
            raise ValueError("--role ingest has no ledger: leave --ledger out")
    elif not (arguments.ledger or "").startswith("postgresql"):
        raise ValueError(
            "--stream needs a ledger that several aggregators share: --ledger postgresql://HOST/DATABASE"
        )
    if arguments.stream_ca:
        import ssl  # Here, since each command's help has these options.

        try:
            ssl.create_default_context(cafile=arguments.stream_ca)
        except ssl.SSLError:
            raise ValueError(f"--stream-ca {arguments.stream_ca}: has no certificates (PEM)") from None
        except OSError as error:
            raise ValueError(
                f"--stream-ca {arguments.stream_ca}: cannot be read ({error.strerror})"
            ) from None
    if arguments.stream_credentials:
        try:
            login_of(arguments.stream_credentials)
        except (OSError, ValueError) as error:
            raise ValueError(f"--stream-credentials {arguments.stream_credentials}: {error}") from None


def _check_servers(arguments: argparse.Namespace) -> None:
    """Refuse servers beyond loopback without credentials or TLS, as `access.listening` does an address to listen on."""
    for url in (one for urls in arguments.stream for one in urls):
        parts = urlsplit(url)
        if is_loopback(parts.hostname or ""):
            continue
        shown = f"--stream {parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if not (arguments.stream_credentials or parts.username):
            raise ValueError(
                f"{shown} is not loopback and nothing authenticates this process there: who reaches the server could "
                "push and read all runs. Use --stream-credentials FILE (deploy/nats/nats-users.conf has the users)"
            )
        if parts.scheme != "tls" and not arguments.insecure_http:
            raise ValueError(
                f"{shown}: without TLS credentials and reports are sent in clear text. Use tls:// (with --stream-ca "
                "for a CA of your own); if the network is trusted, add --insecure-http"
            )


def login_of(file: str) -> dict[str, Any]:
    """What nats-py is given to log in as the user of a credentials file. Raises OSError, ValueError."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(error.strerror) from None
    except UnicodeDecodeError:
        text = ""
    if "-----BEGIN NATS USER JWT-----" in text:
        return {"user_credentials": file}
    user, colon, password = text.strip().partition(":")
    if not (user and colon and password) or "\n" in text.strip():
        raise ValueError("expected one line USER:PASSWORD, or what `nsc generate creds` writes")
    return {"user": user, "password": password}
