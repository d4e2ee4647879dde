"""Reads a page strictly: elements as a tree, tables as rows of text. Raises on what does not nest."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

EMPTY = {"meta", "br"}


@dataclass
class Node:
    name: str
    attributes: dict = field(default_factory=dict)
    children: list = field(default_factory=list)

    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)

    def all(self, name: str | None = None, **attributes) -> list["Node"]:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        found = []
        for child in self.children:
            if isinstance(child, str):
                continue
            if name in (None, child.name) and wanted.items() <= child.attributes.items():
                found.append(child)
            found += child.all(name, **attributes)
        return found

    def one(self, name: str | None = None, **attributes) -> "Node":
        found = self.all(name, **attributes)
        assert len(found) == 1, (name, attributes, len(found))
        return found[0]

    def card(self, key: str) -> "Node":
        return self.one("section", **{"aria-labelledby": key})

    def rows(self) -> list[list[str]]:
        """The body rows of the tables below, as text."""
        return [[cell.text() for cell in row.children] for body in self.all("tbody") for row in body.children]

    def facts(self) -> dict[str, str]:
        return {
            pair.children[0].text(): pair.children[1].text() for dl in self.all("dl") for pair in dl.children
        }


class Reader(HTMLParser):
    """read(text) -> the root, which holds the html element."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = Node("")
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"{tag} has an attribute twice: {names}"
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in EMPTY:
            self.open.append(node)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].name == tag, f"</{tag}> ends <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


def read(text: str) -> Node:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1, f"left open: {[node.name for node in reader.open]}"
    return reader.root
