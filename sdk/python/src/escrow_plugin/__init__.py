"""Write a strategy for Escrow in Python: a class with nine methods. See `docs/guides/write-a-strategy.md`."""

from .errors import (
    Cancelled,
    Conflict,
    Damaged,
    Gone,
    NotAFile,
    NotThere,
    Outside,
    Refused,
    Replaced,
    StrategyError,
    Unsupported,
)
from .models import (
    Access,
    Change,
    DiffView,
    Entry,
    Fixture,
    Location,
    Preview,
    Probe,
    Remark,
    Resource,
    SandboxRef,
)
from .server import check_cancelled, log, progress
from .strategy import Strategy

__all__ = [
    "Access",
    "Cancelled",
    "Change",
    "Conflict",
    "Damaged",
    "DiffView",
    "Entry",
    "Fixture",
    "Gone",
    "Location",
    "NotAFile",
    "NotThere",
    "Outside",
    "Preview",
    "Probe",
    "Refused",
    "Remark",
    "Replaced",
    "Resource",
    "SandboxRef",
    "Strategy",
    "StrategyError",
    "Unsupported",
    "check_cancelled",
    "log",
    "progress",
]

__version__ = "0.1.0"
