"""Validates Kubernetes objects by the schemas of a version of Kubernetes, each distinct object once.

Most objects of two renderings are equal, and kubernetes_validate parses the schema again for each of them.
"""

from __future__ import annotations

_valid: set[tuple[str, str]] = set()  # an object's repr, and the version


def validate(document: dict, version: str) -> None:
    """Raises kubernetes_validate.ValidationError, also for a field that the schema does not have."""
    import kubernetes_validate  # A second of each process of tests, if at the top.

    if (key := (repr(document), version)) not in _valid:
        kubernetes_validate.validate(document, version, strict=True)
        _valid.add(key)
