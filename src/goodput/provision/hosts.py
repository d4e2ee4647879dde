"""The hosts of a cluster as they are given on the command line, and those of earlier calls."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from goodput.access.token_file import replacing

# A token has the name of its host, so this is also a valid name of a token.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")


class ProvisionError(Exception):
    """The files cannot be made; the text says what, where and what to do."""


@dataclass(frozen=True)
class Host:
    """A host: the name that others reach it by, and further names and IPv4 addresses that its certificate has."""

    name: str
    others: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Host:
        """From `NAME` or `NAME=OTHER,OTHER`. Raises ProvisionError."""
        name, equals, rest = text.partition("=")
        others = tuple(rest.split(",")) if equals else ()
        for word in (name, *others):
            if not _NAME.fullmatch(word):
                raise ProvisionError(
                    f"host {text[:80]!r}: {word[:80]!r} is not a host name or IPv4 address; expected NAME or "
                    "NAME=OTHER,OTHER"
                )
        if _is_address(name):
            raise ProvisionError(
                f"host {text[:80]!r}: begin with a name that other hosts resolve, as NAME={name}"
            )
        return cls(name, others)

    def __str__(self) -> str:
        return self.name + ("=" + ",".join(self.others) if self.others else "")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@dataclass
class Inventory:
    """What earlier calls have made: nodes by name, and the hosts as their certificates have them, by name."""

    path: Path
    nodes: dict[str, Host] = field(default_factory=dict)
    certified: dict[str, Host] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Inventory:
        """Empty where there is no file. Raises ProvisionError."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            found = [
                {host.name: host for host in map(Host.parse, document[key])} for key in ("nodes", "certified")
            ]
        except FileNotFoundError:
            return cls(path)
        except (ValueError, KeyError, TypeError, AttributeError, ProvisionError) as error:
            raise ProvisionError(f"{path}: not written by `goodput provision` ({error})") from None
        return cls(path, *found)

    def write(self) -> None:
        document = {
            "nodes": [str(self.nodes[name]) for name in sorted(self.nodes)],
            "certified": [str(self.certified[name]) for name in sorted(self.certified)],
        }
        with replacing(str(self.path), json.dumps(document, indent=1)):
            pass
