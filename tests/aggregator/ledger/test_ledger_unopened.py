"""A ledger that SQLite cannot open: the error says why, not only that it failed."""

import pytest

from goodput.aggregator.ledger.database import Database, LedgerError


def _refusal(path) -> str:
    database = Database(f"sqlite:///{path}")
    with pytest.raises(LedgerError) as found:
        try:
            database.inspecting().connect()
        except Exception as error:
            raise database.error(error) from None
    return str(found.value)


def test_missing_folder_is_named(tmp_path):
    assert _refusal(tmp_path / "absent" / "x.db").endswith(f"there is no folder {tmp_path / 'absent'}")


def test_a_folder_in_place_of_the_file_is_named(tmp_path):
    (tmp_path / "x.db").mkdir()
    assert _refusal(tmp_path / "x.db").endswith("unable to open database file: Is a directory")
