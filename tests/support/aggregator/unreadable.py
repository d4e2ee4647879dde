"""Messages for which msgspec raises DecodeError, RecursionError or UnicodeDecodeError."""

_NESTED = b"\x91" * 100_000
UNREADABLE = (
    b"",
    b"text",
    b"\x81\xa1z" + _NESTED,  # an unknown field, nested deeply
    *(b"\x81" + bytes([0xA0 + len(name)]) + name + b"\xa1\xff" for name in (b"member", b"method", b"node")),
)
