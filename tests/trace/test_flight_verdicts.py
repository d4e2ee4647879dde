"""Verdicts on Flight Recorder dumps: states on the device, coalesced calls, sends and receives, beside PyTorch's analysis."""

from support.trace.flight_maker import Recorder, written

from goodput.cli import main
from goodput.trace.hangs.flight import analyze_flight

PAIRS = {"0": ("default_pg", [0, 1, 2]), "5": ("pipeline", [0, 2])}


def ranks(**more) -> list[Recorder]:
    """Three ranks after four all-reduces to which all came at once."""
    found = [Recorder(rank, **more) for rank in range(3)]
    for one in found:
        for _ in range(4):
            one.collective("all_reduce")
    return found


def verdict(tmp_path, recorders: list[Recorder]) -> dict | None:
    found = analyze_flight(written(tmp_path / "dumps", recorders))
    assert found["errors"] == []
    return found["verdict"]


def text(tmp_path, capsys, recorders: list[Recorder]) -> str:
    assert main(["analyze", "--flight", str(written(tmp_path / "dumps", recorders))]) == 0
    return " ".join(capsys.readouterr().out.split())


# -- what the command prints


def test_text_where_no_rank_comes_last(tmp_path, capsys):
    """All clocks agree to the nanosecond, so the skew is 0 and nobody is last."""
    out = text(tmp_path, capsys, ranks())
    assert "no call is open that explains a hang" in out
    assert "default_pg all_reduce 3 4 4.1 kB 0 0 ns -" in out


def test_rank_without_a_dump_is_named_as_that(tmp_path, capsys):
    first, _, third = ranks()
    for one in (first, third):
        one.collective("all_reduce", state="started")
    out = text(tmp_path, capsys, [first, third])
    assert (
        "rank 1 has not come to all_reduce" in out and "there is no dump of it; ranks 0, 2 wait in it" in out
    )


def test_missing_rank_is_said_to_be_in_another_call(tmp_path, capsys):
    """No sentence of two halves: it is in a call, or in none that is open."""
    first, second, third = ranks(groups=PAIRS)
    first.collective("all_reduce", state="started")
    second.collective("all_reduce", state="started")
    third.transfer("send 1->0", 64, group="5")
    out = text(tmp_path, capsys, [first, second, third])
    assert "no call that is open" not in out and "it is in" not in out.replace(
        "it is in send 1 of group pipeline", ""
    )
    out = text(tmp_path, capsys, [*ranks()[2:], first, second])
    assert "it is in no call that is open; ranks 0, 1 wait in it" in out
