"""Limits of the aggregator's HTTP server.

A refusal is counted in goodput_aggregator_requests_refused_total under the reason given here.
"""

# Request line and headers together, and everything after the head that is not body (chunk sizes, trailers):
# "head", 431.
HEAD_BYTES_MAX = 32 << 10
# Of a body that was refused: clients that read no answer before they have sent all of it should get the answer.
# Beyond it the connection is closed.
REFUSED_BODY_BYTES_MAX = 64 << 20
HEAD_TOO_LARGE = f"request line and headers are larger than {HEAD_BYTES_MAX} bytes\n"
# From the first byte of a request to its last; 32 MiB in that time are 4.5 Mbit/s. "slow", the connection is closed.
REQUEST_SECONDS_MAX = 60.0
# From a complete request to the first byte of the next one, computing and sending the answer included.
ANSWER_SECONDS_MAX = 600.0
# An answer of which the client acknowledges nothing for so long (TCP_USER_TIMEOUT): the connection is closed.
UNREAD_SECONDS_MAX = 60.0
# Requests in one read of a connection; HTTP/1.1 clients rarely pipeline. "busy", the connection is closed.
PIPELINED_MAX = 2
# Without a request; agents push every 5 s.
IDLE_SECONDS_MAX = 75
# "busy", 503. Fewer if the process may open fewer files.
CONNECTIONS_MAX = 20_000
# All reports being received or worked on together. "busy", 503: agents keep what they could not push.
BODIES_BYTES_MAX = 256 << 20
LOGIN_BYTES_MAX = END_BYTES_MAX = 4 << 10
# Wrong tokens from one address; further ones get 429. "throttled". Valid tokens are never refused, so no client can be
# locked out by others behind the same address.
FAILURES_PER_MINUTE_MAX = 30
FAILING_ADDRESSES_MAX = 4096
SESSIONS_MAX, SESSIONS_PER_TOKEN_MAX, SESSION_SECONDS = 1024, 32, 12 * 3600.0
SHUTDOWN_SECONDS_MAX = 10
