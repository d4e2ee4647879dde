"""Token files and refusals."""

import pytest

from goodput.access import token_file
from goodput.access.responses import Refusal
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make


def add(path, name: str = "one", scope: str = "read", **given) -> str:
    text, token = make(name, scope, **given)
    with token_file.changing(path) as tokens:
        tokens.append(token)
    return text


def refusal(cache: TokenCache, text: bytes) -> str:
    with pytest.raises(Refusal) as refused:
        cache.lookup(text)
    return refused.value.reason
