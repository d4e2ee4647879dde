"""Texts of a page that a terminal would act on."""

from support.rank_page.page_maker import Forgery, Rank

from goodput.metrics import Families
from goodput.metrics.text_format import TextWriter
from goodput.rank_page import page
from goodput.rank_page.reader import Reader

EVIL = "\x1b[31m\u202e"


def test_phase_names_and_marks_lose_control_characters(tmp_path):
    forged = Forgery(tmp_path / "forged.page", Rank(tmp_path).train(30).head())
    name, state = EVIL.encode().ljust(32, b"\0"), b"loader\x07".ljust(32, b"\0")
    forged.put(page.USER_OFFSET, name + state)
    with Reader(str(tmp_path / "forged.page")) as reader:
        snapshot = reader.snapshot()
    forged.close()
    assert snapshot.phases[len(page.PHASES)] == "?[31m?"
    assert snapshot.phase_states == {"?[31m?": "loader?"}


def test_label_values_lose_control_characters():
    families = Families("aggregator")
    families.add("goodput_aggregator_info", {"version": f"1{EVIL}\n2"}, 1)
    assert 'version="1?[31m??2"' in TextWriter().write([families]).decode()
