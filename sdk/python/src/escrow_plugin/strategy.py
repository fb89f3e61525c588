"""The base class of a strategy, and what it may implement."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from .models import Change, DiffView, Resource, SandboxRef

#: Every strategy has these.
VERBS = (
    "create",
    "read",
    "write",
    "diff",
    "commit",
    "rollback",
    "checkpoint",
    "restore_checkpoint",
    "cleanup",
)

#: A strategy may have these.
OPTIONAL = (
    "probe",
    "preview",
    "prepare",
    "undo",
    "outcome",
    "check_undo",
    "finish",
    "fork",
    "access",
    "retain",
    "fixture",
    "fixture_contents",
    "fixture_change",
)

_OF_COMMIT = ("ref", "area", "commit_id", "intent", "message")

#: What each method may name.
PARAMETERS = {
    "create": ("plan_id", "resource", "area"),
    "read": ("ref", "area", "path"),
    "write": ("ref", "area", "path", "content"),
    "diff": ("ref", "area", "from_checkpoint", "to_checkpoint"),
    "commit": _OF_COMMIT,
    "rollback": ("ref", "area"),
    "checkpoint": ("ref", "area", "parent"),
    "restore_checkpoint": ("ref", "area", "checkpoint_id"),
    "cleanup": ("ref", "area", "resource"),
    "probe": ("resource", "area"),
    "preview": ("ref", "area", "strict"),
    "prepare": ("ref", "area", "commit_id", "changes", "on_conflict", "message", "commit_area", "keeps"),
    "undo": _OF_COMMIT,
    "outcome": _OF_COMMIT,
    "check_undo": _OF_COMMIT,
    "finish": _OF_COMMIT,
    "fork": ("plan_id", "resource", "area", "from_ref", "checkpoint_id"),
    "access": ("ref", "area"),
    "retain": ("ref", "area", "keep"),
    "fixture": ("directory",),
    "fixture_contents": ("resource",),
    "fixture_change": ("resource", "path", "content"),
}


class Strategy(ABC):
    """How one kind of resource is sandboxed.

    A method takes the parameters that it names, of those that the protocol has for it (`docs/spec/plugin-protocol.md`): `commit`
    may be `commit(self, ref)`, `commit(self, ref, message)` or `commit(self, ref, intent, message)`. Nothing may live in the
    object only: each command of Escrow starts the program anew.
    """

    #: What it promises; what is left out follows from its methods.
    capabilities: ClassVar[dict[str, Any]] = {}
    #: The types of resources that it serves; `"*"` for every one.
    resource_types: ClassVar[list[str]] = []
    #: Whether each sandbox needs a private directory, on the file system of an original that has a path.
    needs_area: ClassVar[bool] = False

    #: The `options` of the strategy in the configuration; set before the first call.
    options: dict[str, Any]
    #: A private directory for as long as the program runs.
    scratch: str

    @abstractmethod
    def create(self, plan_id: str, resource: Resource) -> SandboxRef:
        """Makes a sandbox. Called again for the same plan and resource, begins anew."""

    @abstractmethod
    def read(self, ref: SandboxRef, path: str) -> bytes:
        """The content of an item in the sandbox."""

    @abstractmethod
    def write(self, ref: SandboxRef, path: str, content: bytes) -> Change:
        """Puts an item into the sandbox; `added` or `modified`."""

    @abstractmethod
    def diff(self, ref: SandboxRef) -> DiffView:
        """What differs from the original; with `from_checkpoint` and `to_checkpoint`, between two checkpoints."""

    @abstractmethod
    def commit(self, ref: SandboxRef) -> None:
        """Releases the changes; what `prepare` left is in `intent`, and `commit_id` says which commit it is."""

    @abstractmethod
    def rollback(self, ref: SandboxRef) -> str | None:
        """Discards the changes."""

    @abstractmethod
    def checkpoint(self, ref: SandboxRef) -> str:
        """Keeps the sandbox as it is; the id by which it returns."""

    @abstractmethod
    def restore_checkpoint(self, ref: SandboxRef, checkpoint_id: str) -> None:
        """Returns to a checkpoint, exactly. Called again, does nothing more."""

    @abstractmethod
    def cleanup(self, ref: SandboxRef) -> None:
        """Removes what the sandbox has outside its area. Called again, and for one that was never finished, succeeds."""


def methods(cls: type) -> list[str]:
    """The methods of the protocol that a class has; no instance is made."""

    def own(name: str) -> bool:
        found = getattr(cls, name, None)
        return callable(found) and not getattr(found, "__isabstractmethod__", False)

    return [name for name in (*VERBS, *OPTIONAL) if own(name)]


def mistakes(cls: type) -> list[str]:
    """Where a method cannot be called: it asks for what the protocol does not have there. No instance is made."""
    found = []
    for name in methods(cls):
        static = inspect.getattr_static(cls, name)
        try:
            parameters = list(inspect.signature(getattr(cls, name)).parameters.values())
        except (TypeError, ValueError):
            continue
        where = f"{cls.__name__}.{name}"
        if inspect.isfunction(static):
            named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            if not parameters or parameters[0].kind not in (*named, inspect.Parameter.VAR_POSITIONAL):
                found.append(f"{where} does not take 'self'")
                continue
            if parameters[0].kind in named:
                del parameters[0]
        for one in parameters:
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or one.default is not one.empty and one.kind is not one.POSITIONAL_ONLY:
                continue
            if one.kind is one.POSITIONAL_ONLY:
                found.append(f"{where} takes '{one.name}' by position only, and is called by names")
            elif one.name not in PARAMETERS[name]:
                found.append(f"{where} asks for '{one.name}', which it is not given; it may name {', '.join(PARAMETERS[name])}")
    return found
