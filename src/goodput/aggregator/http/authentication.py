"""The door: may this request come in, and as whom?

In: a request's route and headers. Out: an Access, or Closed with the status and the line to answer.

    without tokens, on loopback    everybody may do everything, if the request names this machine as its host: a page
                                   of the internet whose name suddenly means 127.0.0.1 (DNS rebinding) does not
    without tokens, client CA      whoever has shown a certificate may do everything
    with tokens                    `Authorization: Bearer TOKEN`, or the cookie of a browser that signed in; a cookie
                                   opens what reads, never what pushes. A token in an address is not looked at

A request that would change something must not come from another site's page. Of wrong tokens one address gets a 401 for
FAILURES_PER_MINUTE_MAX a minute, then a 429; a right token always opens, and a page whose session is over is always told
to sign in.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from urllib.parse import urlsplit

from goodput.access.listening import Certificate, host_of, is_loopback
from goodput.access.token_cache import Denied, Keeper
from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.http.headers import Headers, has, value_of
from goodput.aggregator.http.limits import FAILING_ADDRESSES_MAX, FAILURES_PER_MINUTE_MAX
from goodput.aggregator.http.request_metrics import Requests
from goodput.aggregator.http.sessions import Sessions

log = logging.getLogger("goodput.aggregator")

# What needs nothing: it tells nothing of any run.
OPEN = frozenset(("healthz", "login"))
# What changes an account.
PUSHES = frozenset(("ingest", "end"))
PLAIN_COOKIE, SECURE_COOKIE = b"goodput-session", b"__Host-goodput-session"


class Closed(Exception):
    """The door stays closed. `reason` is the Denied's, or the limit's."""

    def __init__(self, status: int, reason: str, text: str):
        super().__init__(text)
        self.status, self.reason = status, reason


class Door:
    """`keeper` is None where no tokens are asked for; `certificate` is that of TLS. `hosts` are names of this machine beside loopback's."""

    def __init__(
        self,
        keeper: Keeper | None = None,
        *,
        hosts: tuple[str, ...] = (),
        any_host: bool = False,
        metrics_public: bool = False,
        certificate: Certificate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.keeper, self.requests = keeper, Requests()
        self.sessions = Sessions(keeper) if keeper else None
        self._hosts, self._any_host = frozenset(map(str.lower, hosts)), any_host or keeper is not None
        self._open = OPEN | {"metrics"} if metrics_public else OPEN
        self.certificate = certificate
        self._throttle = Throttle(clock)

    def look(self) -> None:
        """At the files that may have changed: tokens, certificates."""
        for kept in (self.keeper, self.certificate):
            if kept:
                kept.look()

    def enter(self, scope: dict, route: str) -> Access | None:
        """Who asks; None on a route that is open to all. Raises Closed."""
        headers: Headers = scope["headers"]
        if not self._any_host and route != "healthz":
            self._check_host(headers)
        if scope["method"] not in ("GET", "HEAD"):
            self._check_origin(headers)
        if route in self._open:
            return None
        if self.keeper is None:
            return EVERYTHING
        try:
            return self._identify(headers, "ingest" if route in PUSHES else "read", is_secure(scope))
        except Denied as denied:
            accepts = value_of(headers, b"accept") or b""
            if route == "page" and scope["method"] == "GET" and b"text/html" in accepts:
                # A person with a browser, who has not failed at anything yet.
                raise Closed(303, "login", "sign in") from None
            raise self.closed(scope, denied) from None

    def closed(self, scope: dict, denied: Denied) -> Closed:
        """The refusal, counted, and answered briefly where its address has failed too often."""
        self.requests.failures[denied.reason] += 1
        address = (scope.get("client") or ("",))[0]
        is_guess = denied.reason in ("malformed", "unknown")
        failures = self._throttle.count((address, is_guess))
        if is_guess and failures > FAILURES_PER_MINUTE_MAX:
            self.requests.refused["throttled"] += 1
            return Closed(429, "throttled", "too many failures from your address; wait a minute")
        if failures == 1:
            log.warning("refused %s: %s (further failures in this minute are only counted)", address, denied)
        return Closed(403 if denied.reason == "scope" else 401, denied.reason, str(denied))

    def _identify(self, headers: Headers, scope: str, secure: bool) -> Access:
        if has(headers, b"authorization"):
            kind, _, text = (value_of(headers, b"authorization") or b"").partition(b" ")
            if kind.lower() != b"bearer":
                raise Denied("malformed", "want the header Authorization: Bearer TOKEN")
            access = self.keeper.access(text.strip(b" "))
        elif scope == "read" and (cookie := cookie_of(headers, secure)):
            access = self.sessions.access(cookie)
        else:
            raise Denied(
                "missing", f"want the header Authorization: Bearer TOKEN, with a token of scope {scope}"
            )
        if scope not in access.scopes:
            raise Denied(
                "scope",
                f"the token {access.name} is of scope {access.scopes[0]}, this needs one of scope {scope}",
            )
        return access

    def _check_host(self, headers: Headers) -> None:
        host = host_of((value_of(headers, b"host") or b"").decode("latin-1"))
        if not (is_loopback(host) or host in self._hosts):
            self.requests.refused["host"] += 1
            raise Closed(
                421,
                "host",
                "without tokens this aggregator answers to names of its own machine only (localhost, 127.0.0.1); "
                "a proxy in front sends one of those as Host, or --allow-host names another",
            )

    def _check_origin(self, headers: Headers) -> None:
        """Browsers say where a request comes from; programs do not, and need not."""
        site = value_of(headers, b"sec-fetch-site")
        if site is not None:
            is_same = site in (b"same-origin", b"none")
        elif has(headers, b"origin"):
            origin = urlsplit((value_of(headers, b"origin") or b"").decode("latin-1")).netloc
            is_same = origin.lower() == (value_of(headers, b"host") or b"").decode("latin-1").lower()
        else:
            return
        if not is_same:
            self.requests.refused["origin"] += 1
            raise Closed(403, "origin", "this came from a page of another site")


class Throttle:
    """Failures by address in the minute that began with the first one; bounded, the oldest go first."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._failures: OrderedDict[Hashable, list] = OrderedDict()  # key -> [until, failures]

    def count(self, key: Hashable) -> int:
        """Count one more; how many in this minute."""
        now = self._clock()
        entry = self._failures.get(key)
        if entry is None or now >= entry[0]:
            self._failures.pop(key, None)
            while len(self._failures) >= FAILING_ADDRESSES_MAX:
                self._failures.popitem(last=False)
            entry = self._failures[key] = [now + 60.0, 0]
        entry[1] += 1
        return entry[1]


def cookie_of(headers: Headers, secure: bool) -> bytes | None:
    """The session's cookie. The one for TLS cannot have been set by anything but TLS, which browsers see to."""
    wanted = (SECURE_COOKIE if secure else PLAIN_COOKIE) + b"="
    for name, value in headers:
        if name == b"cookie":
            for part in value.split(b";"):
                if part.strip().startswith(wanted):
                    return part.strip()[len(wanted) :]
    return None


def is_secure(scope: dict) -> bool:
    """Whether the browser speaks TLS, to us or, as it says, to a proxy. Decides on the cookie's kind alone."""
    return scope["scheme"] == "https" or value_of(scope["headers"], b"x-forwarded-proto") == b"https"
