"""Bounds of the aggregator's HTTP side. Those of a report's content are in schema.py, of what is kept in store.py.

Each refusal is counted in goodput_aggregator_requests_refused_total by the reason named here, and answered in a line.
"""

# A request's line and headers together, and what follows its head without being a body. "head", 431.
HEAD_BYTES_MAX = 32 << 10
# From a request's first byte to its last; 32 MiB in that time are 4.5 Mbit/s. "slow", the connection ends.
REQUEST_SECONDS_MAX = 60.0
# From an answer's end to when its reader has taken it, and of an answer that waits for its reader. "slow", the
# connection ends.
READ_SECONDS_MAX = 60.0
# Requests of one connection that wait behind the one that is answered; more end the connection. "busy".
WAITING_MAX = 1
# From a connection's begin to the first byte of a request, and between two requests; agents push every 5 s.
IDLE_SECONDS_MAX = 75
# "busy", 503. Fewer where the process may open fewer files.
CONNECTIONS_MAX = 20_000
# Of all bodies that are being read at a time. "busy", 503: agents keep what they could not push.
BODIES_BYTES_MAX = 256 << 20
LOGIN_BYTES_MAX = END_BYTES_MAX = 4 << 10
# Wrong tokens of one address in a minute; further ones are answered with 429. "throttled". Who has a right to it is never
# refused, so nobody can be locked out by others behind the same address.
FAILURES_PER_MINUTE_MAX = 30
FAILING_ADDRESSES_MAX = 4096
SESSIONS_MAX, SESSIONS_PER_TOKEN_MAX, SESSION_SECONDS = 1024, 32, 12 * 3600.0
SHUTDOWN_SECONDS_MAX = 10
