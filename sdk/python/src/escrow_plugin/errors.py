"""Errors that Escrow understands. Any other exception is reported as a failure, with its text.

A `commit` that raises says that nothing was done: the other members of the plan are taken back. One that cannot say so has a method
`outcome`, or ends the process.
"""

from __future__ import annotations

from typing import Any


class StrategyError(Exception):
    """A request that the strategy could not fulfil."""

    kind = "failed"

    def __init__(self, message: str, *, path: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.path = path
        self.data = data


class NotThere(StrategyError):
    """There is nothing at the path."""

    kind = "not_there"

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no {path}", path=path)


class NotAFile(StrategyError):
    """What stands at the path has no content."""

    kind = "not_a_file"

    def __init__(self, path: str, what: str = "directory") -> None:
        super().__init__(f"{path} is a {what}", path=path, what=what)


class Outside(StrategyError):
    """The path leads out of the resource."""

    kind = "outside"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} leads out of the resource", path=path)


class Refused(StrategyError):
    """Nothing was done, for the reason that the message gives."""

    kind = "refused"


class Conflict(StrategyError):
    """The original changed meanwhile; nothing was done."""

    kind = "conflict"


class Unsupported(StrategyError):
    """The strategy cannot do this at all."""

    kind = "unsupported"


class Gone(StrategyError):
    """The original is not there any more."""

    kind = "gone"

    def __init__(self, original: str) -> None:
        super().__init__(f"{original} is gone", original=original)


class Replaced(StrategyError):
    """Another thing stands where the original was."""

    kind = "replaced"

    def __init__(self, original: str) -> None:
        super().__init__(f"{original} is not what this sandbox was made from", original=original)


class Damaged(StrategyError):
    """What the strategy once wrote down cannot be read back."""

    kind = "damaged"


class Cancelled(StrategyError):
    """Escrow gave the call up."""

    kind = "cancelled"

    def __init__(self) -> None:
        super().__init__("cancelled")
