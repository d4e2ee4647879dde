"""A misspelled option of a command is named, with what was probably meant and that command's usage."""

import pytest

from goodput.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--lisen", "127.0.0.1:0"], "there is no option '--lisen'; did you mean --listen?"),
        (
            ["node", "--agregator=http://127.0.0.1:1"],
            "there is no option '--agregator'; did you mean --aggregator?",
        ),
        (["serve", "--zzzzzz"], "there is no option '--zzzzzz'"),
    ],
)
def test_misspelled_option_names_the_nearest(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert lines[0].startswith(f"usage: goodput {words[0]} ")
    assert lines[-1] == f"goodput {words[0]}: error: {said}"
