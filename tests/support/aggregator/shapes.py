"""Answers of the API against the types that its OpenAPI schema is generated from."""

import msgspec


def assert_shape(found, type_: type) -> None:
    """`found`, decoded JSON, has exactly the fields of `type_`, each of its type."""
    assert msgspec.to_builtins(msgspec.convert(found, type_)) == found
