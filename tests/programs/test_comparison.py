"""The comparison of an account with a stopwatch: 1 % of wall time, and more only for measured waits for cores."""

from support.programs.comparison import differences

# A second of each, of which 2 % are shutdown; 1 % of the wall time is 10 ms.
EXPECTED = {"productive": 780_000_000, "loader": 200_000_000}


def account(productive: int, loader: int) -> dict[str, int]:
    return {"productive": productive * 10**6, "loader": loader * 10**6}


def test_quiet_machine_allows_one_percent():
    """Time after the stopwatch's end, 20 ms, may be in any state besides. A wait of 1 ms is no wait."""
    for waited in (0, 10**6):
        assert differences(account(809, 191), EXPECTED, core_wait=waited) == {}
        assert differences(account(811, 189), EXPECTED, core_wait=waited) == {
            "productive": 0.031,
            "loader": -0.011,
        }


def test_waits_for_cores_are_allowed_as_measured():
    waited = 5 * 10**6
    assert differences(account(815, 185), EXPECTED, core_wait=waited) == {}
    assert differences(account(816, 184), EXPECTED, core_wait=waited) == {
        "productive": 0.036,
        "loader": -0.016,
    }


def test_merged_states_count_as_productive():
    states = {**account(700, 200), "compile": 100 * 10**6}
    assert differences(states, EXPECTED, merged=("compile",)) == {}
    assert differences(states, EXPECTED) == {"productive": -0.08, "compile": 0.1}
