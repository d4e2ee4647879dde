"""Fixtures: a test that takes `url`, `ledger` or `new_url` runs on SQLite and on PostgreSQL."""

import pytest


@pytest.fixture(scope="session")
def postgresql():
    """One server for all tests of a session; a test asks it for a database of its own."""
    from support.servers.postgresql_server import PostgreSQL

    with PostgreSQL() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request):
    return request.param


@pytest.fixture
def new_url(backend, request, tmp_path):
    """Makes URLs of ledgers that are not there yet."""
    if backend == "postgresql":
        server = request.getfixturevalue("postgresql")
        yield server.create_database
        server.drop_databases()
    else:
        numbers = iter(["", *range(2, 100)])
        yield lambda: f"sqlite:///{tmp_path}/ledger{next(numbers)}.db"


@pytest.fixture
def url(new_url):
    """Of a ledger that is not there yet."""
    return new_url()


@pytest.fixture
def ledger(url):
    from goodput.aggregator.ledger.ledger import Ledger

    opened = Ledger(url)
    yield opened
    opened.close()
