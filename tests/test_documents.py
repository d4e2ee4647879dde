"""Documents name files, make targets, options, variables, series, tests and headings that exist."""

from __future__ import annotations

import argparse
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from goodput import cli
from goodput.metrics import CATALOGUE

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("deploy/**/*.md"),
    ROOT / "bench" / "README.md",
]
# Of other projects.
FOREIGN_FILES = {"nvme_metrics.py", "nvidia-bug-report.sh"}
OWN_FILES = {"deploy/kubernetes/overlays/mine", "/etc/goodput/nodes.yml"}  # that a user or a command writes
SOURCES = (
    ".py",
    ".c",
    ".h",
    ".js",
    ".ts",
    ".tsx",
    ".yml",
    ".yaml",
    ".sh",
    ".toml",
    ".conf",
    ".service",
    ".env",
)


def spans(page: Path) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`\n]+)`", page.read_text())


def missing(find, is_there) -> list[str]:
    """What `find` finds on pages, with the page, where it is not there."""
    return [
        f"{page.relative_to(ROOT)}: {one}" for page in PAGES for one in find(page) if not is_there(page, one)
    ]


@cache
def files() -> list[Path]:
    """Of a checkout those that git knows, else all."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [Path(line) for line in listed.stdout.splitlines()]
    return [path.relative_to(ROOT) for path in ROOT.rglob("*") if ".venv" not in path.parts]


@cache
def paths() -> set[str]:
    """Every part of every path, so that files and folders may be named from any folder on."""
    parts = [path.parts for path in files()]
    return {
        "/".join(one[at:end])
        for one in parts
        for at in range(len(one))
        for end in range(at + 1, len(one) + 1)
    }


@cache
def words(with_tests: bool = False) -> set[str]:
    """Names in the sources."""
    found = set[str]()
    for path in files():
        if path.suffix in SOURCES and (with_tests or path.parts[0] != "tests") and (ROOT / path).is_file():
            found.update(re.findall(r"\w+", (ROOT / path).read_text(errors="replace")))
    return found


def test_files_and_folders_exist():
    ends = r"py|c|h|js|yml|yaml|sh|md|css|jsonl|service|conf"
    folders = r"(?:src|tests|deploy|bench|dashboards|exporters|docs)/[\w./-]*|[a-z_]+/"

    def find(page):
        return [one for one in spans(page) if re.fullmatch(rf"[\w./-]+\.(?:{ends})|{folders}", one)]

    def is_there(page, name):
        plain = name.rstrip("/")
        return plain in paths() | FOREIGN_FILES | OWN_FILES or (page.parent / name).exists()

    # A folder of a user's own, in an example of torchrun.
    assert [one for one in missing(find, is_there) if not one.endswith(": logs/")] == []


def test_headings_that_links_lead_to_exist():
    def headings(page: Path) -> set[str]:
        texts = re.findall(r"^#+ (.*)", page.read_text(), re.M)
        return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in texts}

    def find(page):
        return re.findall(r"\]\(([^)\s:]*#[^)\s]+)\)", page.read_text())

    def is_there(page, link):
        name, _, heading = link.partition("#")
        return heading in headings((page.parent / name) if name else page)

    assert missing(find, is_there) == []


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))

    def find(page):
        return re.findall(r"(?:`|^    )make ([a-z][a-z-]+)", page.read_text(), re.M)

    assert missing(find, lambda _, name: name in targets) == []


def test_series_variables_and_tests_exist():
    def find(page):
        text = "\n".join(spans(page))
        return re.findall(r"\b(?:goodput_[a-z0-9_]+|GOODPUT_[A-Z_]+|test_[a-z0-9_]+)", text)

    every = words(with_tests=True) | {path.stem for path in files()}

    def is_there(page, name):
        own = re.sub(r"_(?:bucket|sum|count)$", "", name)
        # One with a part to be put in ends before it.
        return (
            own in CATALOGUE
            or name in every
            or (name.endswith("_") and any(one.startswith(name) for one in every))
        )

    made = {"GOODPUT_CLIENT_CERT", "GOODPUT_CLIENT_KEY"}  # from the names of options
    assert [one for one in missing(find, is_there) if one.split(": ")[1] not in made] == []


@cache
def options() -> dict[str, str]:
    """The help of each command and of its actions, which names their options."""
    found = {}

    def add(name: str, parser: argparse.ArgumentParser) -> None:
        found[name] = parser.format_help()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for own, sub in action.choices.items():
                    add(f"{name} {own}".strip(), sub)

    add("", cli.parser())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_the_options_that_are_shown(page):
    text = page.read_text().replace("\\\n", " ")
    calls = re.findall(r"^    +(?:\S*/)?goodput ([a-z]+ [^\n]*)", text, re.M)
    calls += re.findall(r"`goodput ([a-z]+ [^`\n]*)`", text)
    for call in calls:
        command, action, *_ = [*re.split(r"\s+#|[|>;&]", call)[0].split(), ""]
        helped = options().get(f"{command} {action}", options().get(command))
        if helped is None:
            continue  # The rate of the same name, as in `goodput of the steps`.
        for option in re.findall(
            r"(?<![\w-])--[a-z][a-z-]+", re.split(r"\s+#| -- | torchrun | python ", call)[0]
        ):
            assert re.search(rf"{option}\b", helped), f"goodput {call}: no {option}"
