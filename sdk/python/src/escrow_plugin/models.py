"""What travels between Escrow and a strategy, as plain dataclasses."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Iterator, Literal

Kind = Literal[
    "added", "modified", "deleted", "type_changed", "mode_changed", "inserted", "updated"
]
Json = Any


@dataclass
class SandboxRef:
    """Refers to a sandbox. `metadata` is yours: whatever another process needs to go on with it, also after a reboot."""

    plan_id: str
    resource_id: str
    strategy_name: str
    metadata: dict[str, Json] = field(default_factory=dict)
    #: The private directory of the sandbox, if the strategy says `needs_area`. Given with every call.
    area: str | None = None


@dataclass
class Location:
    """Where a resource is: a path, a URL, or a text that only the strategy understands."""

    kind: Literal["path", "url", "opaque"]
    value: str


@dataclass
class Resource:
    """A whole resource, with the options of the configuration."""

    id: str
    name: str
    type: str
    location: Location
    options: dict[str, Json] = field(default_factory=dict)
    #: Paths that belong to other resources and are not part of the sandbox.
    carved: list[str] = field(default_factory=list)
    #: The private directory of the sandbox, if the strategy says `needs_area`.
    area: str | None = None

    @property
    def path(self) -> str:
        """Its path; an error where it has none."""
        if self.location.kind != "path":
            raise ValueError(f"the resource {self.name} has no path")
        return self.location.value


@dataclass
class Entry:
    """One version of an item."""

    size: int = 0
    mode: int = 0
    type: Literal["file", "directory", "symlink", "fifo", "socket", "device"] = "file"
    target: str | None = None


@dataclass
class Change:
    """One difference between sandbox and original."""

    path: str
    kind: Kind
    old: Entry | None = None
    new: Entry | None = None
    #: Anything else that a reader should see, of an item that is no file.
    detail: Json = None


@dataclass
class DiffView:
    """Everything in which a sandbox differs from its original."""

    changes: list[Change] = field(default_factory=list)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)


@dataclass
class Remark:
    """A conflict, or a note: where, and what."""

    path: str
    what: str


@dataclass
class Preview:
    """What a commit would do, and what contradicts it."""

    changes: list[Change] = field(default_factory=list)
    conflicts: list[Remark] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)
    bytes: int = 0


@dataclass
class Probe:
    """Whether the strategy works for a resource, and why or why not."""

    works: bool
    reason: str = ""
    limit: str | None = None


@dataclass
class Access:
    """How native tools reach a sandbox: a path or a URL, and variables for commands."""

    path: str | None = None
    url: str | None = None
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Fixture:
    """An original that `escrow strategy check` may do anything with."""

    type: str
    location: Location
    #: An item that is in it, and its content.
    known: tuple[str, bytes]
    #: An item that is not in it and could be written.
    absent: str | None = None
    #: What writing `absent` creates on the way, outermost first.
    on_the_way: list[str] = field(default_factory=list)
    options: dict[str, Json] = field(default_factory=dict)


def unescape(text: str) -> str:
    """A path as Python knows it: bytes that are not UTF-8 become surrogates, as `os.fsdecode` makes them."""
    if "\\" not in text:
        return text
    out = bytearray()
    rest = text.encode()
    at = 0
    while at < len(rest):
        if rest[at : at + 1] != b"\\":
            out.append(rest[at])
            at += 1
        elif rest[at + 1 : at + 2] == b"\\":
            out.append(0x5C)
            at += 2
        elif rest[at + 1 : at + 2] == b"x":
            out.append(int(rest[at + 2 : at + 4], 16))
            at += 4
        else:
            raise ValueError(f"a broken escape in {text!r}")
    return os.fsdecode(bytes(out))


def escape(path: str) -> str:
    """The same on the way back."""
    raw = os.fsencode(path)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and "\\" not in text and text.isprintable():
        return text
    pieces = []
    for byte in raw:
        plain = 0x20 <= byte < 0x7F and byte != 0x5C
        pieces.append(chr(byte) if plain else "\\\\" if byte == 0x5C else f"\\x{byte:02x}")
    return "".join(pieces)
