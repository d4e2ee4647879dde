"""Who may import whom, as ARCHITECTURE.md says, and the house rules that a program can check."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "exporters").rglob("*.py")])
# Room -> rooms of this project that it may import; "lazily" holds what it may import inside functions only.
ROOMS = {
    "goodput": {"sdk"},
    "auto": {"goodput", "sdk"},
    "bootstrap": set(),
    "lightning": {"goodput", "auto", "sdk"},
    "transformers": {"goodput", "auto", "sdk"},
    "page": set(),
    "identity": set(),
    "page_records": {"page"},
    "device_steps": {"page"},
    "page_loader": {"page"},
    "page_reader": {"page", "identity", "page_records", "page_loader", "device_steps"},
    "look": {"page"},
    "histogram": set(),
    "windows": {"histogram"},
    "hdrlog": {"histogram"},
    "schema": {"identity"},
    "metrics": set(),
    "access": set(),
    "account": set(),
    "flops": {"account"},
    "causes": {"account"},
    "runlog": {"account", "schema"},
    "local": {"page", "page_loader", "page_reader", "account"},
    "sdk": {"page", "identity", "page_loader", "device_steps", "look"},
    "aggregator": {"goodput", "schema", "metrics", "access", "account", "causes", "histogram", "windows"},
    "exporters": {
        *("goodput", "page", "page_loader", "page_reader", "identity", "look"),
        *("histogram", "schema", "metrics", "access"),
    },
    "report_page": {"account", "identity"},
    "children": set(),
    "demo": {"goodput", "account", "children"},
    "up": {"children"},
    "trace": set(),
    "cli": {"goodput", "page", "access"},
    "__main__": {"cli"},
}
LAZILY = {
    "transformers": {"account"},
    "bootstrap": {"auto"},
    "sdk": {"account", "causes", "flops", "local", "page_reader"},
    "cli": {
        *("account", "causes", "local", "identity", "look", "report_page", "runlog"),
        *("aggregator", "demo", "exporters", "trace", "bootstrap", "up"),
    },
    "exporters": set(),
}
# Rooms that use the standard library alone.
STANDARD = {
    "goodput",
    "auto",
    "page",
    "identity",
    "page_records",
    "page_loader",
    "device_steps",
    "page_reader",
    "look",
    "histogram",
    "windows",
    "account",
    "causes",
    "local",
    "report_page",
    "sdk",
    "trace",
    "children",
    "up",
    "access",
}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "exporters":
        return "exporters"
    return "goodput" if parts[2] == "__init__" else parts[2]


def imports(tree: ast.AST):
    """(module, name, inside a function) of every import in a file."""
    inside = {
        id(n)
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
        for n in ast.walk(f)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, None, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                yield node.module, name.name, id(node) in inside


def target(module: str, name: str | None) -> str | None:
    """The room of this project that an import reaches, None for what is not ours."""
    parts = module.split(".")
    if parts[0] == "goodput_exporters":
        return "exporters"
    if parts[0] != "goodput":
        return None
    if len(parts) > 1:
        return parts[1]
    return name if name in ROOMS and name != "goodput" else "goodput"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path):
    room = room_of(path)
    for module, name, lazily in imports(ast.parse(path.read_text())):
        reached = target(module, name)
        if reached is None or reached == room:
            continue
        allowed = ROOMS[room] | (LAZILY.get(room, set()) if lazily else set())
        assert reached in allowed, f"{room} imports {reached} ({module}, {name})"


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if room_of(p) in STANDARD], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_trainers_rooms_use_the_standard_library_alone(path):
    for module, _, _ in imports(ast.parse(path.read_text())):
        top = module.split(".")[0]
        assert top in sys.stdlib_module_names or top == "goodput", f"{path.name} imports {module}"


def test_the_table_in_the_architecture_page_is_this_one():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z_]+)` \|[^|]*\|([^|]*)\|", text, re.M))
    for room, allowed in ROOMS.items():
        if room in ("goodput", "__main__"):
            continue
        named = set(re.findall(r"`([a-z_]+)`", rows[room]))
        assert named - {"goodput"} == (allowed | LAZILY.get(room, set())) - {"goodput"}, room


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 70, (
                f"{node.name} has {node.end_lineno - node.lineno} lines"
            )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
