"""The server: reads calls from standard input, answers on standard output.

Standard output belongs to the protocol. While the server runs, `print` and the output of child processes go to stderr, and standard
input is empty.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import inspect
import json
import os
import queue
import sys
import threading
import traceback
import uuid
from typing import Any, BinaryIO

from . import models
from .errors import Cancelled, NotAFile, NotThere, Refused, StrategyError, Unsupported
from .models import Change, DiffView, Entry, Fixture, Location, Preview, Remark, Resource, SandboxRef
from .strategy import methods, mistakes

PROTOCOL_VERSION = 1

#: Contents up to this size travel in a message, larger ones in a file.
INLINE = 256 * 1024

#: Longer lines are never read by Escrow.
LONGEST = 16 * 1024 * 1024

_current: Server | None = None


class Server:
    """Serves one class over two streams."""

    def __init__(self, cls: type, reader: BinaryIO, writer: BinaryIO) -> None:
        self.cls = cls
        self.reader = reader
        self.writer = writer
        self.writing = threading.Lock()
        self.calls: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.cancelled: set[Any] = set()
        self.call_id: Any = None
        self.instance: Any = None
        self.name = ""
        self.options: dict[str, Any] = {}
        self.scratch = ""

    def serve(self) -> None:
        """Answers until standard input ends."""
        global _current
        _current = self
        threading.Thread(target=self._read, daemon=True).start()
        while (call := self.calls.get()) is not None:
            self._answer(call)

    def _read(self) -> None:
        for line in self.reader:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                self._send({"id": None, "error": {"code": -32700, "message": "this is not JSON"}})
                continue
            if not isinstance(message, dict) or not isinstance(message.get("method"), str):
                self._send({"id": None, "error": {"code": -32600, "message": "this is no call"}})
            elif message["method"] == "cancel":
                params = message.get("params")
                if isinstance(params, dict):
                    self.cancelled.add(str(params.get("id")))
            elif "id" in message:
                self.calls.put(message)
        self.calls.put(None)

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        if len(line) > LONGEST:
            error = {"code": -32000, "message": f"the answer has more than {LONGEST} bytes"}
            line = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "error": error}).encode() + b"\n"
        with self.writing:
            self.writer.write(line)
            self.writer.flush()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._send({"method": method, "params": params})

    def _answer(self, call: dict[str, Any]) -> None:
        self.call_id = call["id"]
        try:
            params = call.get("params") or {}
            if not isinstance(params, dict):
                raise StrategyError("the parameters have no names")
            result = self._call(call["method"], params)
            self._send({"id": call["id"], "result": result})
        except StrategyError as error:
            data = {"kind": error.kind, **error.data}
            if error.path is not None:
                data["path"] = models.escape(error.path)
            self._send({"id": call["id"], "error": {"code": -32000, "message": str(error), "data": data}})
        except Exception as error:  # whatever it is, Escrow must hear of it
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
            self._send({"id": call["id"], "error": {"code": -32000, "message": message, "data": {"kind": "failed"}}})

    def _call(self, method: str, params: dict[str, Any]) -> Any:
        if method == "initialize":
            return self._initialize(params)
        if method not in methods(self.cls):
            raise Unsupported(f"{self.cls.__name__} has no method {method}")
        known = self._arguments(params)
        function = getattr(self._strategy(), method)
        try:
            answer = _pass(function, known)
        except FileNotFoundError as error:
            if method != "read":
                raise
            raise NotThere(known["path"]) from error
        except (IsADirectoryError, NotADirectoryError) as error:
            if method != "read":
                raise
            raise NotAFile(known["path"]) from error
        return self._result(method, answer, known)

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        self.name = params.get("strategy", "")
        self.options = params.get("options") or {}
        self.scratch = models.unescape(params.get("scratch", ""))
        if wrong := mistakes(self.cls):
            raise Refused("; ".join(wrong))
        return {
            "protocol_version": PROTOCOL_VERSION,
            "name": self.cls.__name__,
            "methods": methods(self.cls),
            "capabilities": getattr(self.cls, "capabilities", {}),
            "resource_types": getattr(self.cls, "resource_types", []),
            "needs_area": getattr(self.cls, "needs_area", False),
        }

    def _strategy(self) -> Any:
        """The object, made for the first call that needs one."""
        if self.instance is None:
            made = self.cls.__new__(self.cls)
            made.options = self.options
            made.scratch = self.scratch
            if self.cls.__init__ is not object.__init__:
                _pass(made.__init__, {"options": self.options, "scratch": self.scratch})
            self.instance = made
        return self.instance

    def _arguments(self, params: dict[str, Any]) -> dict[str, Any]:
        """What a method may name, as Python knows it."""
        known = dict(params)
        area = params.get("area")
        area = models.unescape(area) if isinstance(area, str) else None
        known["area"] = area
        for key in ("ref", "from"):
            if isinstance(params.get(key), dict):
                name = {"from": "from_ref"}.get(key, key)
                known[name] = self._reference(params[key], area if key == "ref" else None)
        if isinstance(params.get("resource"), dict):
            known["resource"] = _resource(params["resource"], area)
        for key in ("path", "commit_area", "directory"):
            if isinstance(params.get(key), str):
                known[key] = models.unescape(params[key])
        content = params.get("content")
        if isinstance(content, dict):
            known["content"] = self._content(content)
        if isinstance(params.get("changes"), list):
            known["changes"] = [Change(models.unescape(one["path"]), one["kind"]) for one in params["changes"]]
        return known

    def _reference(self, wire: dict[str, Any], area: str | None) -> SandboxRef:
        return SandboxRef(
            wire["plan_id"], wire["resource_id"], wire["strategy_name"], wire.get("metadata") or {}, area
        )

    def _content(self, wire: dict[str, Any]) -> bytes:
        if "base64" in wire:
            return base64.b64decode(wire["base64"])
        with open(os.path.join(self.scratch, os.path.basename(wire["file"])), "rb") as file:
            return file.read()

    def _wrapped(self, content: bytes | bytearray | str) -> dict[str, str]:
        raw = content.encode() if isinstance(content, str) else bytes(content)
        if len(raw) <= INLINE:
            return {"base64": base64.b64encode(raw).decode()}
        name = f"read-{uuid.uuid4().hex}"
        with open(os.path.join(self.scratch, name), "xb") as file:
            file.write(raw)
        return {"file": name}

    def _result(self, method: str, answer: Any, known: dict[str, Any]) -> Any:
        if method in ("create", "fork"):
            if isinstance(answer, SandboxRef):
                answer = {"metadata": answer.metadata}
            elif answer is None or "metadata" not in answer:
                answer = {"metadata": answer or {}}
            return answer
        if method == "read":
            return {"content": self._wrapped(answer)}
        if method == "write":
            if isinstance(answer, str):
                answer = Change(known["path"], answer)  # type: ignore[arg-type]
            return _wire(answer)
        if method == "diff":
            return {"changes": _wire(answer.changes if isinstance(answer, DiffView) else list(answer or []))}
        if method == "checkpoint":
            return {"checkpoint_id": answer}
        if method == "rollback":
            return {"message": answer} if isinstance(answer, str) else {}
        if method == "prepare":
            return {"intent": answer}
        if method == "finish":
            return {"intent": answer} if answer is not None else {}
        if method == "outcome":
            return {"outcome": answer}
        if method == "check_undo":
            return {"conflicts": _wire(list(answer or []))}
        if method == "probe":
            return {"works": answer, "reason": ""} if isinstance(answer, bool) else _wire(answer)
        if method == "fixture_contents":
            return {"contents": [
                {"path": models.escape(path), "base64": base64.b64encode(raw).decode()}
                for path, raw in sorted(answer.items())
            ]}
        return _wire(answer)


def _resource(wire: dict[str, Any], area: str | None) -> Resource:
    location = wire["location"]
    value = location["value"]
    if location["kind"] == "path":
        value = models.unescape(value)
    carved = [models.unescape(path) for path in wire.get("carved", [])]
    return Resource(
        wire.get("id", ""), wire.get("name", ""), wire["type"], Location(location["kind"], value),
        wire.get("options") or {}, carved, area,
    )


def _wire(value: Any) -> Any:
    """A model as it travels."""
    if isinstance(value, Fixture):
        path, raw = value.known
        location = {"kind": value.location.kind, "value": value.location.value}
        if value.location.kind == "path":
            location["value"] = models.escape(value.location.value)
        return {
            "type": value.type, "location": location, "options": value.options,
            "known": {"path": models.escape(path), "base64": base64.b64encode(raw).decode()},
            "absent": models.escape(value.absent) if value.absent is not None else None,
            "on_the_way": [models.escape(one) for one in value.on_the_way],
        }
    if isinstance(value, (Change, Entry, Preview, Remark, models.Probe, models.Access)):
        out = {one.name: _wire(getattr(value, one.name)) for one in dataclasses.fields(value)}
        for key in ("path", "target"):
            if isinstance(out.get(key), str):
                out[key] = models.escape(out[key])
        return {key: one for key, one in out.items() if one is not None}
    if isinstance(value, (list, tuple)):
        return [_wire(one) for one in value]
    return value


def _pass(function: Any, known: dict[str, Any]) -> Any:
    """Calls a function with what it names, of what is known."""
    signature = inspect.signature(function)
    arguments: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update({key: one for key, one in known.items() if key.isidentifier()})
        elif name in known:
            arguments[name] = known[name]
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            where = getattr(function, "__qualname__", function)
            offered = ", ".join(sorted(key for key in known if key.isidentifier()))
            raise TypeError(f"{where} asks for '{name}', which the protocol does not have here; it has {offered}")
    return function(**arguments)


def log(message: str, level: str = "info") -> None:
    """Says something beside the answer; `warning` and `error` are shown to the user."""
    if _current is not None:
        _current.notify("log", {"level": level, "message": message})


def progress(entries: int = 0, bytes: int = 0) -> None:
    """So many more entries and bytes were copied."""
    if _current is not None:
        _current.notify("progress", {"entries": entries, "bytes": bytes})


def check_cancelled() -> None:
    """Raises `Cancelled` where Escrow gave the call up. Long work calls this now and then."""
    if _current is not None and str(_current.call_id) in _current.cancelled:
        raise Cancelled()


def load(named: str) -> type:
    """The class of `module:ClassName`."""
    module, _, name = named.partition(":")
    if not name:
        raise SystemExit(f"'{named}' is not module:ClassName")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, type):
        raise SystemExit(f"'{named}' is no class")
    return found


def main(named: str) -> None:
    """Serves a class on this process's standard streams."""
    reader = os.fdopen(os.dup(0), "rb")
    writer = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    Server(load(named), reader, writer).serve()
