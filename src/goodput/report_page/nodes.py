"""HTML elements as text, safe by default: whatever is not an element already is escaped.

In: names, attributes, texts. Out: `Html`, the only text that goes into the page as it is. Guarantee: a text from
outside cannot end an attribute or begin an element, and what is not printable (control characters, lone
surrogates, marks that turn the direction of writing) becomes "?". It does not know what the page says.

    element("td", "a < b", class_="n")  ->  <td class="n">a &lt; b</td>
"""

from __future__ import annotations

from html import escape

from goodput.wire.identity import clean_text

TEXT_LENGTH_MAX = 2000
NAME_LENGTH_MAX = 64
_EMPTY = ("meta", "br", "rect", "line")


class Html(str):
    """Finished markup."""


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Children and attributes that are None are left out; lists of children are opened."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY:
        return Html(f"<{name}{said}>" if name in ("meta", "br") else f"<{name}{said}/>")
    return Html(f"<{name}{said}>{joined(children)}</{name}>")


def joined(children: object) -> Html:
    """Children one after the other, escaped where they are no elements."""
    if children is None:
        return Html("")
    if isinstance(children, list | tuple):
        return Html("".join(joined(child) for child in children))
    return children if isinstance(children, Html) else Html(_safe(children))


def short(text: object, most: int = NAME_LENGTH_MAX) -> str:
    """A text from outside, cut to `most` characters, which the page's size is bounded by."""
    text = str(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def table(heads: list, rows: list[list], *, label: str, foot: list | None = None, wide=()) -> Html:
    """A table whose first column names the row. Heads that begin with ">" are of numbers and stand right.

    `wide` are the columns that may break lines; the others keep theirs.
    """
    right = [head.startswith(">") for head in heads]
    kinds = ["n" if right[i] else "wide" if i in wide else "keep" if i else None for i in range(len(heads))]
    top = [element("th", head.lstrip(">"), scope="col", class_=kinds[i]) for i, head in enumerate(heads)]
    return element(
        "div",
        element(
            "table",
            element("caption", label),
            element("thead", element("tr", top)),
            element("tbody", [_row(row, kinds) for row in rows]),
            element("tfoot", _row(foot, kinds)) if foot else None,
        ),
        class_="scroll",
    )


def _row(cells: list, kinds: list[str | None]) -> Html:
    first, *others = cells
    head = element("th", first, scope="row", class_=kinds[0])
    return element(
        "tr", head, [element("td", cell, class_=kind) for cell, kind in zip(others, kinds[1:], strict=True)]
    )


def facts(pairs: list[tuple[str, object] | None]) -> Html:
    """Names with their values; None is left out."""
    shown = [pair for pair in pairs if pair is not None]
    return element(
        "dl", [element("div", element("dt", n), element("dd", v)) for n, v in shown], class_="facts"
    )


def card(title: str, key: str, *children: object, class_: str = "card") -> Html:
    """A part of the page under its own heading; `key` is unique in the page."""
    heading = element("h3", title, id=key)
    return element("section", heading, children, class_=class_, aria_labelledby=key)


def muted(*children: object) -> Html:
    return element("p", children, class_="muted")


def _safe(value: object) -> str:
    return escape(clean_text(value, TEXT_LENGTH_MAX), quote=True)
