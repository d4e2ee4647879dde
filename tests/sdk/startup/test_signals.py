"""Which exceptions belong to the user's signal handlers."""

from __future__ import annotations

import functools
import signal

import pytest

from goodput.user_exceptions import reraise_from_handler


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
