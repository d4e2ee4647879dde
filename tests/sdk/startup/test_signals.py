"""Which exceptions belong to the user's signal handlers."""

from __future__ import annotations

import ast
import functools
import signal
from pathlib import Path

import pytest

import goodput
from goodput.user_exceptions import reraise_from_handler

SOURCES = Path(goodput.__file__).parent


class Limit:
    def method(self, number, frame):
        raise TimeoutError("mine")

    def __call__(self, number, frame):
        raise TimeoutError("mine")


def plain(number, frame):
    raise TimeoutError("mine")


@pytest.mark.parametrize("handler", [plain, Limit().method, Limit(), functools.partial(plain)])
def test_exception_of_a_handler_is_raised_again(handler):
    old = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutError, match="mine"):
            try:
                signal.raise_signal(signal.SIGUSR1)
                sum(range(10**6))
            except Exception as error:
                reraise_from_handler(error)
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_other_exceptions_are_not_raised_again():
    try:
        plain(1, None)
    except Exception as error:
        reraise_from_handler(error)
        reraise_from_handler(ValueError("without a traceback"))


# -- who calls it


def caught_by(handler: ast.ExceptHandler) -> set[str]:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(found).rpartition(".")[2] for found in types if found is not None}


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Whether the clause raises again or asks for what comes from handlers."""
    asking = {"reraise_from_handler", "is_from_handler"}
    return any(
        (isinstance(node, ast.Raise) and node.exc is None)
        or (isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in asking)
        for statement in handler.body
        for node in ast.walk(statement)
    )


def clauses_that_swallow(text: str) -> list[int]:
    """Lines of `except` clauses that would swallow a time limit: an Exception, often a TimeoutError, so an OSError."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or caught_by(node) & {"Exception", "OSError", "TimeoutError"})
        and not passes_on(node)
    ]


def test_every_clause_in_the_training_process_passes_on():
    files = [*(SOURCES / "sdk").rglob("*.py"), SOURCES / "rank_page" / "page.py"]
    found = {file.relative_to(SOURCES).as_posix(): clauses_that_swallow(file.read_text()) for file in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_clause_that_swallows_is_found():
    clause = "try:\n    pass\nexcept {}:\n    {}\n"
    for caught in ("Exception", "OSError as error", "(ValueError, socket.TimeoutError)"):
        assert clauses_that_swallow(clause.format(caught, "pass")) == [3]
    assert clauses_that_swallow(clause.format("ValueError", "pass")) == []
    assert clauses_that_swallow(clause.format("Exception as error", "reraise_from_handler(error)")) == []
