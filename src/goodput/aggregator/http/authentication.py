"""Authentication of aggregator requests: bearer tokens, session cookies, same-origin check, throttling.

Cookies permit reading, never pushing; tokens in URLs are ignored. Clients without a valid token from one address get
FAILURES_PER_MINUTE_MAX 401 answers a minute, then 429; a valid token is never throttled.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from urllib.parse import urlsplit

from starlette.types import Scope

from goodput.access.audit import AuditLog
from goodput.access.authentication import Authenticator, require_scope
from goodput.access.responses import Refusal
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import Access, Token
from goodput.aggregator.http.headers import Headers, header_values
from goodput.aggregator.http.limits import FAILING_ADDRESSES_MAX, FAILURES_PER_MINUTE_MAX
from goodput.aggregator.http.request_metrics import RequestMetrics
from goodput.aggregator.http.sessions import Sessions
from goodput.aggregator.http.token_budgets import TokenBudgets, TokenLimits

log = logging.getLogger("goodput.aggregator")

# Routes without authentication: they reveal nothing about any run.
PUBLIC_ROUTES = frozenset(("healthz", "readyz", "login"))
# Routes that change an account; they require scope ingest.
INGEST_ROUTES = frozenset(("ingest", "end"))


class RequestAuthenticator(Authenticator):
    """The checks of every request to the aggregator, with their counters in `metrics`."""

    def __init__(
        self,
        tokens: TokenCache | None = None,
        *arguments,
        metrics_public: bool = False,
        token_limits: TokenLimits | None = None,
        audit: AuditLog | None = None,
        clock: Callable[[], float] = time.monotonic,
        **settings,
    ):
        super().__init__(tokens, *arguments, **settings)
        self.metrics, self.audit = RequestMetrics(), audit or AuditLog()
        if tokens is not None:
            tokens.on_change = self._audit_token
        self.budgets = TokenBudgets(token_limits)
        self.sessions = Sessions(tokens) if tokens else None
        self._public_routes = PUBLIC_ROUTES | {"metrics"} if metrics_public else PUBLIC_ROUTES
        self._throttle = Throttle(clock)

    def check_request(self, scope: Scope, route: str) -> Access | None:
        """The client's Access, None on a public route. Raises Refusal."""
        headers: Headers = scope["headers"]
        hosts = [value.decode("latin-1") for value in header_values(headers, b"host")]
        try:
            if route not in ("healthz", "readyz"):
                self.check_host(hosts)
            if scope["method"] not in ("GET", "HEAD"):
                check_origin(headers, hosts)
        except Refusal as refusal:
            self.metrics.refused[refusal.reason] += 1
            self.audit.refusal(refusal.reason, address_of(scope), route=route)
            raise
        if route in self._public_routes:
            return None
        try:
            return self._access(scope, "ingest" if route in INGEST_ROUTES else "read")
        except Refusal as refusal:
            accepts_html = any(b"text/html" in value for value in header_values(headers, b"accept"))
            if route == "page" and scope["method"] == "GET" and accepts_html:
                # A browser without a session goes to the sign-in page; that is not a failure.
                raise Refusal("login", "sign in") from None
            raise self.count_failure(scope, refusal, route) from None

    def _audit_token(self, what: str, token: Token) -> None:
        named = {"token": token.name, "token_id": token.id, "scope": token.scope}
        runs, expires = token.access().runs, token.expires
        self.audit.token_event(f"token_{what}", **named, runs=list(runs), expires=expires)

    def count_failure(self, scope: Scope, refusal: Refusal, route: str = "login") -> Refusal:
        """Count a failed authentication; the refusal to answer, 429 where an address keeps sending wrong tokens."""
        self.metrics.failures[refusal.reason] += 1
        address = address_of(scope)
        self.audit.refusal(refusal.reason, address, route=route, text=str(refusal))
        is_guess = refusal.reason in ("malformed", "unknown")
        failures = self._throttle.count((address, is_guess))
        if is_guess and failures > FAILURES_PER_MINUTE_MAX:
            self.metrics.refused["throttled"] += 1
            return Refusal("throttled", "too many failed attempts from this address; try again in a minute")
        if failures == 1:
            log.warning("refused %s: %s (further failures this minute are only counted)", address, refusal)
        return refusal

    def _access(self, request: Scope, scope: str) -> Access:
        authorizations = header_values(request["headers"], b"authorization")
        cookie = cookie_of(request) if scope == "read" and not authorizations else None
        if not (self.sessions and cookie):
            return self.authenticate(authorizations, scope)
        access = self.sessions.access(cookie)
        require_scope(access, scope)
        return access


class Throttle:
    """Counts failures by key, in the minute that began with the first; the oldest keys are evicted."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._failures: OrderedDict[Hashable, list] = OrderedDict()  # key -> [end of its minute, failures]

    def count(self, key: Hashable) -> int:
        """Count one failure; the number in this minute."""
        now = self._clock()
        entry = self._failures.get(key)
        if entry is None or now >= entry[0]:
            self._failures.pop(key, None)
            while len(self._failures) >= FAILING_ADDRESSES_MAX:
                self._failures.popitem(last=False)
            entry = self._failures[key] = [now + 60.0, 0]
        entry[1] += 1
        return entry[1]


def address_of(scope: Scope) -> str:
    """The client's address, "" where it has none."""
    return (scope.get("client") or ("",))[0]


def check_origin(headers: Headers, hosts: list[str]) -> None:
    """Refuse requests from other sites' pages. Browsers send one of these headers; programs need not."""
    sites, origins = header_values(headers, b"sec-fetch-site"), header_values(headers, b"origin")
    if sites:
        is_same = sites in ([b"same-origin"], [b"none"])
    else:
        names = [urlsplit(origin.decode("latin-1")).netloc.lower() for origin in origins]
        is_same = not origins or (len(names) == 1 and names == [host.lower() for host in hosts])
    if not is_same:
        raise Refusal("origin", "cross-site request: it came from another site's page")


def cookie_name(secure: bool) -> str:
    """Browsers accept a `__Host-` cookie only over TLS, so nothing else can have set it."""
    return "__Host-goodput-session" if secure else "goodput-session"


def cookie_of(scope: Scope) -> bytes | None:
    """The session cookie."""
    prefix = f"{cookie_name(is_secure(scope))}=".encode()
    values = header_values(scope["headers"], b"cookie")
    cookies = [part.strip() for value in values for part in value.split(b";")]
    return next((cookie[len(prefix) :] for cookie in cookies if cookie.startswith(prefix)), None)


def is_secure(scope: Scope) -> bool:
    """Whether the browser uses TLS, to us or according to a proxy. Selects the kind of cookie, nothing else."""
    return scope["scheme"] == "https" or header_values(scope["headers"], b"x-forwarded-proto") == [b"https"]
