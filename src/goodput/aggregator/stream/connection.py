"""The connection to NATS, and what this program keeps there: a stream of pushes, and a bucket of leases.

The first process that connects makes both. A stream with another number of partitions is an error: no aggregator would
read its messages.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError
from nats.js.kv import KeyValue

from goodput.aggregator.stream import cancellation, partitions
from goodput.aggregator.stream.errors import StreamError
from goodput.aggregator.stream.options import login_of

log = logging.getLogger("goodput.aggregator")
NAME, LEASES = "GOODPUT_PUSHES", "goodput_leases"
# A holder that does not renew its leases for so long loses its partitions.
LEASE_SECONDS = 5.0
# JetStream's error codes where the stream exists with another configuration, and where it is larger than the servers' bound.
STREAM_EXISTS, NO_STORAGE = 10058, 10047
# A push that is published again within this time is stored once.
DUPLICATE_SECONDS = 120.0
CONNECT_SECONDS, RECONNECT_SECONDS = 2, 1
RETRY_SECONDS = 0.2  # of a subscription that failed or ended
# A server that does not answer two pings is left for another one.
PING_SECONDS, PINGS_MAX = 2, 2
PUBLISH_SECONDS = 8.0  # electing a leader takes 4 to 9 s
# What a message has beside the report: headers, and the fields of messages.PushMessage.
HEAD_BYTES = 16 << 10
MESSAGE_BYTES_MAX = 1 << 20
FAILURES = NatsError, OSError, asyncio.TimeoutError  # of the connection or a server


class StreamSettings(NamedTuple):
    """Where the stream is, and how it is made where there is none."""

    urls: tuple[str, ...]
    count: int = partitions.PARTITIONS
    replicas: int = 3
    bytes_max: int = 8 << 30
    credentials: str | None = None  # a file
    ca: str | None = None

    @property
    def needs_tls(self) -> bool:
        return bool(self.ca) or any(url.startswith("tls:") for url in self.urls)

    @property
    def shown(self) -> str:
        """The addresses without secrets."""
        return ", ".join(_without_secrets(url) for url in self.urls)


class _TlsClient(Client):
    """Sends nothing to a server without TLS, where nats-py would go on in plain text, also with a password."""

    def _connect_command(self) -> bytes:
        if not self._server_info.get("tls_required"):
            raise NatsError("nats: a server does not use TLS")
        return super()._connect_command()


class Stream:
    """One connection. Methods raise StreamError."""

    def __init__(self, settings: StreamSettings, name: str = "goodput"):
        self.settings, self._name = settings, name
        self.client = Client()
        self._js: JetStreamContext | None = None
        self._leases: KeyValue | None = None
        self._is_closing = False
        self._connecting_again: asyncio.Task | None = None
        self._refusal = ""  # why a server that answered was not connected to
        self.id = ""  # of this stream; one of the same name that is deleted and made again has another

    @property
    def count(self) -> int:
        return self.settings.count

    @property
    def is_connected(self) -> bool:
        return self._js is not None and self.client.is_connected

    @property
    def has_connected(self) -> bool:
        """Whether it ever was connected."""
        return self._js is not None

    @property
    def js(self) -> JetStreamContext:
        if self._js is None:
            raise StreamError(f"stream {self.settings.shown}: not connected yet")
        return self._js

    @property
    def leases(self) -> KeyValue:
        if self._leases is None:
            raise StreamError(f"stream {self.settings.shown}: not connected yet")
        return self._leases

    async def connect(self) -> None:
        """Connect, and make the stream and the bucket where they are missing.

        Tries until it succeeds. Raises StreamError for a stream with other partitions, or of too few servers.
        """
        logged = ""
        while True:
            self._refusal = ""
            try:
                await self._connect_once()
                return
            except (*FAILURES, ValueError) as error:
                text = self._refusal or _text(error)
                if text != logged:
                    log.warning("stream %s: %s; trying again", self.settings.shown, text)
                logged = text
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _connect_once(self) -> None:
        if not self.client.is_connected:
            # A client that failed to connect, or has closed, cannot be used again.
            client = self.client = (_TlsClient if self.settings.needs_tls else Client)()
            try:
                await client.connect(**self._options(client))
            except Exception:
                with suppress(Exception):
                    await asyncio.wait_for(client.close(), CONNECT_SECONDS)
                raise
            # From now on it reconnects for ever, unless a server ends the connection (_connect_again).
            client.options.update(allow_reconnect=True, max_reconnect_attempts=-1)
        js = self.client.jetstream(timeout=PUBLISH_SECONDS)
        self.id = await self._ensure_stream(js)
        self._leases = await self._ensure_leases(js)
        self._js = js

    def _options(self, client: Client) -> dict:
        """Those of nats-py. Raises OSError, ValueError."""
        context = ssl.create_default_context(cafile=self.settings.ca) if self.settings.ca else None
        return {
            "servers": list(self.settings.urls),
            "name": self._name,
            "connect_timeout": CONNECT_SECONDS,
            # Else a refusal ends no attempt where the servers of a cluster name each other: they are tried for ever.
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": RECONNECT_SECONDS,
            "ping_interval": PING_SECONDS,
            "max_outstanding_pings": PINGS_MAX,
            "error_cb": self._log_error,
            "disconnected_cb": self._logs(client, "disconnected"),
            "reconnected_cb": self._logs(client, "connected again"),
            "closed_cb": partial(self._connect_again, client),
            "tls": context,
            **(login_of(self.settings.credentials) if self.settings.credentials else {}),
        }

    async def _connect_again(self, closed: Client) -> None:
        """Replace a client that has closed: nats-py does not reconnect after an error message of a server, such as for an
        expired user or a protocol error."""
        task = self._connecting_again
        if self._is_closing or closed is not self.client or self._js is None or (task and not task.done()):
            return
        error = closed.last_error
        reason = _refusal(error) or _text(error) if error else "no reason given"
        log.warning(
            "stream %s: a server ended the connection: %s; connecting anew", self.settings.shown, reason
        )
        self._connecting_again = asyncio.create_task(self._until_connected())

    async def _until_connected(self) -> None:
        while not self.client.is_connected:
            await asyncio.sleep(RECONNECT_SECONDS)
            try:
                await self.connect()
            except StreamError as error:
                log.error("%s; trying again", error)
        log.warning("stream %s: connected again", self.settings.shown)

    async def messages(self, subject: str) -> AsyncIterator[Msg]:
        """What is published to a subject from now on, until cancelled; subscribes again after a new connection."""
        while True:
            client = self.client
            if client.is_connected or client.is_reconnecting:
                try:
                    subscription = await client.subscribe(subject)
                    async for message in subscription.messages:
                        yield message
                except NatsError as error:
                    log.debug("stream %s: %s", self.settings.shown, _text(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def close(self) -> None:
        self._is_closing = True
        await cancellation.end(self._connecting_again)
        if self.client.is_connected or self.client.is_reconnecting:
            await self.client.close()

    def message_bytes_max(self) -> int:
        """The bound of the report in a message, in bytes."""
        return min(self.client.max_payload, MESSAGE_BYTES_MAX) - HEAD_BYTES

    async def publish(self, partition: int, body: bytes, message_id: str) -> None:
        """Returns when the stream has stored the message on a majority of its replicas."""
        subject = partitions.pushes(self.count, partition)
        with self.errors():
            await self.js.publish(
                subject, body, timeout=PUBLISH_SECONDS, stream=NAME, headers={"Nats-Msg-Id": message_id}
            )

    async def used_share(self) -> float:
        """The used share of the stream's bound in bytes; at 1 it refuses pushes. 0 without a bound."""
        with self.errors():
            info = await self.js.stream_info(NAME)
        bytes_max = info.config.max_bytes or -1
        return info.state.bytes / bytes_max if bytes_max > 0 else 0.0

    async def purge(self, partition: int, before: int) -> None:
        """Delete the messages of a partition before the sequence number `before`."""
        with self.errors():
            await self.js.purge_stream(NAME, seq=before, subject=partitions.pushes(self.count, partition))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raises FAILURES as StreamError."""
        try:
            yield
        except FAILURES as error:
            raise self.error(error) from None

    def error(self, error: Exception) -> StreamError:
        return StreamError(f"stream {self.settings.shown}: {_text(error)}")

    async def _ensure_stream(self, js: JetStreamContext) -> str:
        wanted = partitions.pushes(self.count, "*")
        config = StreamConfig(
            name=NAME,
            description=f"goodput's pushes, {uuid.uuid4().hex}",
            subjects=[wanted],
            retention=RetentionPolicy.LIMITS,
            # A full stream refuses what is new: agents keep it, and nothing that was acknowledged is dropped.
            discard=DiscardPolicy.NEW,
            max_bytes=self.settings.bytes_max,
            storage=StorageType.FILE,
            num_replicas=self.settings.replicas,
            duplicate_window=DUPLICATE_SECONDS,
        )
        try:
            found = await js.stream_info(NAME)
        except NotFoundError:
            found = await self._made(lambda: self._add_stream(js, config))
        if found.config.subjects != [wanted]:
            has = ", ".join(found.config.subjects or [])
            raise StreamError(
                f"stream {self.settings.shown}: {NAME} has the subjects {has}, not {wanted}: every process needs the "
                "same --partitions; to change it, stop all of them when nothing is left in the stream, and delete it"
            )
        if wrong := _losing(found.config):
            raise StreamError(
                f"stream {self.settings.shown}: {NAME} loses pushes that were acknowledged: {', '.join(wrong)}; mend it "
                f"with `nats stream edit {NAME}`, or delete it when nothing is left in it"
            )
        # Not its time of creation: servers differ in that, so an election would seem to replace the stream.
        return found.config.description or str(found.created)

    async def _add_stream(self, js: JetStreamContext, config: StreamConfig) -> StreamInfo:
        try:
            return await js.add_stream(config)
        except APIError as error:
            if error.err_code != STREAM_EXISTS:
                raise
            return await js.stream_info(NAME)  # another process was faster

    async def _ensure_leases(self, js: JetStreamContext) -> KeyValue:
        try:
            return await js.key_value(LEASES)
        except NotFoundError:
            return await self._made(
                lambda: js.create_key_value(
                    bucket=LEASES, ttl=LEASE_SECONDS, history=1, replicas=self.settings.replicas
                )
            )

    async def _made(self, make: Callable[[], Awaitable]):
        """The result of `make`. Raises StreamError where trying again cannot help, else APIError."""
        try:
            return await make()
        except APIError as error:
            if error.code == 503 or "replicas" not in str(error.description):
                raise
            raise StreamError(
                f"stream {self.settings.shown}: {self.settings.replicas} replicas need as many servers in a cluster "
                f"({error.description}); --stream-replicas 1 is for tests"
            ) from None

    async def _log_error(self, error: Exception) -> None:
        log.debug("stream %s: %s", self.settings.shown, _text(error))
        self._refusal = _refusal(error) or self._refusal

    def _logs(self, client: Client, what: str) -> Callable[[], Awaitable[None]]:
        """A callback that logs this, of a client that was connected, unless the connection is being closed."""

        async def callback() -> None:
            if client.options["allow_reconnect"] and not self._is_closing:
                log.warning("stream %s: %s", self.settings.shown, what)

        return callback


def _text(error: Exception) -> str:
    if isinstance(error, NoServersError):
        return "no server answers"
    if isinstance(error, asyncio.TimeoutError) and not str(error).strip():
        return "no answer in time"
    if isinstance(error, APIError):
        if not error.description:
            return (
                "the servers have no JetStream, or it is still starting (`jetstream` in their configuration)"
            )
        hint = "; --stream-bytes is above max_file_store" if error.err_code == NO_STORAGE else ""
        return f"{error.description} (code {error.err_code}{hint})"
    return str(error).removeprefix("nats: ") or type(error).__name__


def _losing(config: StreamConfig) -> list[str]:
    """The settings of a stream with which it drops messages by itself."""
    settings = (
        ("retention", config.retention, RetentionPolicy.LIMITS),
        ("discard", config.discard, DiscardPolicy.NEW),
        ("storage", config.storage, StorageType.FILE),
        ("max_age", config.max_age or 0, 0),
        ("max_msgs_per_subject", max(config.max_msgs_per_subject, 0), 0),
    )
    return [f"{name} is {has}" for name, has, needed in settings if has != needed]


def _refusal(error: Exception) -> str:
    """Why a server that answers is not used: it refuses this process, or fails its check; "" for other errors."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"a server's certificate is not valid here: {error.verify_message} (--stream-ca)"
    if isinstance(error, ssl.SSLError):
        return f"TLS with a server fails: {error.reason or error}"
    if "authorization" in str(error).lower():
        return "a server refuses this user or password (--stream-credentials)"
    if "tls" in str(error).lower():
        return f"{_text(error)} (tls:// in --stream)"
    return ""


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}"
