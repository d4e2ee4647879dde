"""Fixtures: a test that takes `url`, `ledger` or `new_url` runs on SQLite and on PostgreSQL."""

import shutil

import pytest


@pytest.fixture(scope="session")
def postgresql():
    """One server for all tests of a session; a test asks it for a database of its own."""
    from support.servers.postgresql_server import PostgreSQL

    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_template(postgresql):
    """The name of a database with the ledger's tables."""
    from goodput.aggregator.ledger.ledger import Ledger

    Ledger(postgresql.create_template("tables")).close()
    return "tables"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """A file with the ledger's tables."""
    from goodput.aggregator.ledger.ledger import Ledger

    path = tmp_path_factory.mktemp("template") / "ledger.db"
    Ledger(f"sqlite:///{path}").close()
    return path


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
def url(new_url, backend, request, tmp_path):
    """Of a ledger that is not there yet; in a test that takes `ledger` too, of that one."""
    if "ledger" not in request.fixturenames:
        return new_url()
    # Copied: to make the tables anew takes ten times as long.
    if backend == "postgresql":
        template = request.getfixturevalue("postgresql_template")
        return request.getfixturevalue("postgresql").create_database(template)
    shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "ledger.db")
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(url):
    from goodput.aggregator.ledger.ledger import Ledger

    opened = Ledger(url)
    yield opened
    opened.close()
