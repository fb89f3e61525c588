"""A strategy without the SDK: one document of keys and values, like the toy of the tests. Its options let it misbehave: `mode` in `verb`.

It shares no code with the engine or the SDK.
"""

import base64
import json
import os
import subprocess
import sys
import time

VERBS = ["create", "read", "write", "diff", "commit", "rollback", "checkpoint", "restore_checkpoint", "cleanup"]
OPTIONS = {}


def record(side, message):
    """Notes what travels, for the test of the schema."""
    if OPTIONS.get("record"):
        with open(OPTIONS["record"], "a") as file:
            file.write(json.dumps([side, message]) + "\n")


def say(message):
    record("from_program", {"jsonrpc": "2.0", **message})
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def load(at):
    with open(at) as file:
        return json.load(file)


def save(at, document):
    with open(at + ".new", "w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(at + ".new", at)


def compare(old, new):
    def kind(key):
        return "added" if key not in old else "deleted" if key not in new else "modified"

    return [{"path": key, "kind": kind(key)} for key in sorted(old | new) if old.get(key) != new.get(key)]


class Failure(Exception):
    pass


def put(at, values):
    document = load(at)
    for key, value in values.items():
        document.pop(key, None)
        if value is not None:
            document[key] = value
    save(at, document)


def answer(method, params):
    if method == "initialize":
        OPTIONS.update(params["options"])
        methods = [verb for verb in VERBS if verb not in OPTIONS.get("lacks", [])]
        return {
            "protocol_version": OPTIONS.get("version", 1),
            "name": "hostile",
            "methods": methods + OPTIONS.get("methods", ["prepare", "undo", "preview"])
            + ["fixture", "fixture_contents", "fixture_change"],
            "capabilities": OPTIONS.get("capabilities", {}),
            "resource_types": ["document"],
        }
    if method == "fixture":
        at = os.path.join(params["directory"], "document")
        save(at, {"known": "its own", "other": "another"})
        known = {"path": "known", "base64": base64.b64encode(b"its own").decode()}
        return {"type": "document", "location": {"kind": "opaque", "value": at}, "known": known, "absent": "absent"}
    if method == "fixture_contents":
        items = load(params["resource"]["location"]["value"]).items()
        encoded = lambda text: base64.b64encode(text.encode("latin-1")).decode()
        return {"contents": [{"path": key, "base64": encoded(text)} for key, text in items]}
    if method == "fixture_change":
        raw = base64.b64decode(params["content"]["base64"]).decode("latin-1")
        return put(params["resource"]["location"]["value"], {params["path"]: raw})
    if method == "create":
        at = params["resource"]["location"]["value"]
        own = f"{at}.{params['plan_id']}"
        save(own, load(at))
        save(own + ".base", load(at))
        return {"metadata": {"at": at, "own": own}}
    meta = params["ref"]["metadata"]
    if method in ("finish", "check_undo"):
        return {"conflicts": []} if params["commit_id"] else None
    if method == "cleanup":
        # The options of the configuration come along.
        if "needs" in OPTIONS and params["resource"]["options"].get("needs") != OPTIONS["needs"]:
            raise Failure("damaged")
        if meta is not None:
            for end in ("", ".base"):
                if os.path.exists(meta["own"] + end):
                    os.remove(meta["own"] + end)
        return None
    at, own = meta["at"], meta["own"]
    if method == "read":
        document = load(own)
        if params["path"] not in document:
            raise Failure("not_there")
        return {"content": {"base64": base64.b64encode(document[params["path"]].encode("latin-1")).decode()}}
    if method == "write":
        content = params["content"]
        if "file" in content:
            with open(os.path.join(SCRATCH[0], content["file"]), "rb") as file:
                raw = file.read()
        else:
            raw = base64.b64decode(content["base64"])
        known = params["path"] in load(own)
        put(own, {params["path"]: raw.decode("latin-1")})
        return {"path": params["path"], "kind": "modified" if known else "added"}
    if method == "diff":
        old = params["from_checkpoint"]
        new = params["to_checkpoint"]
        return {"changes": compare(load(own + ".base") if old is None else old, load(own) if new is None else new)}
    if method == "preview":
        base, now, there = load(own + ".base"), load(own), load(at)
        changes = compare(base, now)
        moved = [one["path"] for one in changes if base.get(one["path"]) != there.get(one["path"])]
        return {"changes": changes, "conflicts": [{"path": path, "what": "changed there since"} for path in moved]}
    if method == "prepare":
        there, now = load(at), load(own)
        return {"intent": {one["path"]: [there.get(one["path"]), now.get(one["path"])] for one in params["changes"]}}
    if method == "commit":
        if params["intent"] is None:
            return put(at, {one["path"]: load(own).get(one["path"]) for one in compare(load(own + ".base"), load(own))})
        return put(at, {key: new for key, (_, new) in params["intent"].items()})
    if method == "undo":
        intent = params["intent"]
        if intent is None:
            base = load(own + ".base")
            return put(at, {one["path"]: base.get(one["path"]) for one in compare(base, load(own))})
        there = load(at)
        return put(at, {key: old for key, (old, new) in intent.items() if there.get(key) == new})
    if method == "rollback":
        save(own + ".base", load(at))
        save(own, load(at))
        return {"message": "discarded"}
    if method == "checkpoint":
        return {"checkpoint_id": load(own)}
    if method == "restore_checkpoint":
        return save(own, params["checkpoint_id"])
    raise Failure("unsupported")


SCRATCH = [""]


def misbehave(mode, call):
    """Returns whether the call is still to be answered."""
    number = call["id"]
    if mode == "exit":
        print("it ends now", file=sys.stderr)
        sys.exit(3)
    if mode == "hang":
        time.sleep(1000)
    if mode == "rubbish":
        sys.stdout.write("Traceback: this is no JSON\n")
    if mode == "print":
        print("hello")
    if mode == "array":
        sys.stdout.write("[1, 2]\n")
    if mode == "binary":
        sys.stdout.buffer.write(b"\xff\x00\xfe\n")
    if mode == "wrong_id":
        say({"id": number + 7, "result": {}})
    if mode == "text_id":
        say({"id": str(number), "result": {}})
    if mode == "no_version":
        sys.stdout.write(json.dumps({"id": number, "result": {}}) + "\n")
    if mode == "both":
        say({"id": number, "result": {}, "error": {"code": 1, "message": "both"}})
    if mode == "neither":
        say({"id": number})
    if mode == "request":
        say({"id": 99, "method": "commit", "params": {}})
    if mode == "half":
        sys.stdout.write('{"jsonrpc": "2.0", "id": ')
        sys.stdout.flush()
        sys.exit(0)
    if mode == "huge":
        line = "x" * (1024 * 1024)
        for _ in range(20):
            sys.stdout.write(line)
    if mode == "wrong_form":
        say({"id": number, "result": 17})
        return False
    if mode == "error":
        say({"id": number, "error": {"code": -32000, "message": "it does not want to\x1b[2J"}})
        return False
    if mode == "refuse":
        say({"id": number, "error": {"code": -32000, "message": "not now", "data": {"kind": "refused"}}})
        return False
    if mode == "log_flood":
        for count in range(1000):
            say({"method": "log", "params": {"level": "warning", "message": f"warning {count}"}})
    if mode == "stderr_flood":
        for _ in range(20000):
            sys.stderr.write("flood " * 20 + "\n")
        sys.stderr.write("the end of the flood\n")
        sys.stderr.flush()
        sys.exit(4)
    if mode == "children":
        child = subprocess.Popen(["sleep", "1000"])
        with open(OPTIONS["note"], "w") as file:
            file.write(str(child.pid))
        sys.exit(5)
    sys.stdout.flush()
    return True


for line in sys.stdin:
    call = json.loads(line)
    if "id" not in call:
        continue
    if call["method"] == "initialize":
        SCRATCH[0] = call["params"]["scratch"]
        OPTIONS.update(call["params"]["options"])
    record("from_engine", call)
    mode = OPTIONS.get("mode") if OPTIONS.get("verb") == call["method"] else None
    once = OPTIONS.get("once")
    if mode and once:
        if os.path.exists(once):
            mode = None
        else:
            open(once, "w").close()
    if mode and mode not in ("twice", "leaves") and not misbehave(mode, call):
        continue
    try:
        result = answer(call["method"], call["params"])
        say({"id": call["id"], "result": result})
        if mode == "twice":
            say({"id": call["id"], "result": result})
        if mode == "leaves":
            sys.exit(0)
    except Failure as failure:
        say({"id": call["id"], "error": {"code": -32000, "message": "no", "data": {"kind": str(failure)}}})
    except Exception as error:
        say({"id": call["id"], "error": {"code": -32000, "message": repr(error)}})
