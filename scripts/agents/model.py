#!/usr/bin/env python3
"""A model that follows a script, for real clients without a network.

    model.py --script SCRIPT --record FILE [--port PORT]

SCRIPT is a JSON list of turns: {"tool": NAME, "input": {…}} calls a tool of the client, {"text": "…"} answers. Each
request of a conversation takes the next turn; the last one is repeated. Questions beside the conversation (a title, a
count of tokens) get an answer of their own and take no turn.

What it speaks, streaming and not:

    Anthropic   POST /v1/messages, /v1/messages/count_tokens
    OpenAI      POST …/responses, …/chat/completions
    Gemini      POST …:generateContent, …:streamGenerateContent, …:countTokens
    tokens      POST …/token: a refreshed OAuth token, its value from the script's first turn {"token": "…"}

FILE gets one JSON line for each request: method, host, path, headers that hold a login, body.

With `--authority DIR` the model is a proxy for TLS too: a client that has `https_proxy` set to it and trusts DIR/ca.crt
(NODE_EXTRA_CA_CERTS, SSL_CERT_FILE) finds it behind every name, so that a login can be refreshed without a network.
"""

import argparse
import gzip
import http.server
import json
import pathlib
import ssl
import subprocess
import threading

LOGIN = ("authorization", "x-api-key", "x-goog-api-key")


class Script:
    """The turns, and how far the conversation is."""

    def __init__(self, turns):
        self.token = next((turn["token"] for turn in turns if "token" in turn), None)
        self.turns = [turn for turn in turns if "token" not in turn] or [{"text": "done"}]
        # A client without tools (aider) has a conversation too: then the script calls none.
        self.needs_tools = any("tool" in turn for turn in self.turns)
        self.next = 0
        self.lock = threading.Lock()

    def turn(self, body):
        """The turn for this request, and its number."""
        with self.lock:
            if self.needs_tools and not body.get("tools"):
                return {"text": "ok"}, 0
            turn = self.turns[min(self.next, len(self.turns) - 1)]
            self.next += 1
            return turn, self.next


class Authority:
    """A certificate for any name, of an authority made in `directory` by openssl."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.certificate = self.directory / "ca.crt"
        self.lock = threading.Lock()
        if not self.certificate.exists():
            self.openssl(
                *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"),
                *("-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=Scripted model"),
                *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"),
            )

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)

    def context(self, host):
        """What a server of this name shows."""
        with self.lock:
            if not (self.directory / f"{host}.pem").exists():
                (self.directory / f"{host}.ext").write_text(f"subjectAltName=DNS:{host}\n")
                self.openssl(
                    *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                    *("-keyout", f"{host}.key", "-out", f"{host}.csr", "-subj", f"/CN={host}"),
                )
                self.openssl(
                    *("x509", "-req", "-in", f"{host}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
                    *("-days", "30", "-extfile", f"{host}.ext", "-out", f"{host}.pem"),
                )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.directory / f"{host}.pem", self.directory / f"{host}.key")
        return context


class Model(http.server.ThreadingHTTPServer):
    """A server of one script. Requests are appended to `record`, a path, as they come."""

    daemon_threads = True

    def __init__(self, turns, record, port=0, authority=None):
        super().__init__(("127.0.0.1", port), Requests)
        self.authority = authority
        self.script = Script(turns)
        self.record = record
        self.lock = threading.Lock()

    def follow(self, turns, record):
        """Begins another script, with a record of its own."""
        with self.lock:
            self.script, self.record = Script(turns), record

    @property
    def port(self):
        return self.server_address[1]

    def start(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def write_down(self, **request):
        with self.lock, open(self.record, "a", encoding="utf-8") as file:
            file.write(json.dumps(request) + "\n")


class Requests(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, kind="application/json", status=200):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def events(self, events, named=False, end=""):
        text = "".join(
            (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events
        )
        self.answer((text + end).encode(), "text/event-stream")

    def note(self, body):
        login = {name: self.headers[name] for name in LOGIN if self.headers.get(name)}
        self.server.write_down(
            method=self.command, host=self.headers.get("host"), path=self.path, login=login, body=body
        )

    def do_CONNECT(self):
        host = self.path.rsplit(":", 1)[0]
        if self.server.authority is None:
            self.answer({"error": f"no way to {host}"}, status=502)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        try:
            inside = self.server.authority.context(host).wrap_socket(self.connection, server_side=True)
        except OSError as error:
            self.server.write_down(method="CONNECT", host=host, path=str(error), login={}, body=None)
        else:
            self.__class__(inside, self.client_address, self.server)
            inside.close()
        self.close_connection = True

    def do_HEAD(self):
        self.note(None)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self):
        self.note(None)
        if self.headers.get("upgrade"):
            # A client that asks for a web socket then takes plain requests.
            self.answer({"error": "no web sockets"}, status=426)
        else:
            self.answer({"data": [], "models": []})

    def do_POST(self):
        raw = self.body()
        if self.headers.get("content-encoding") == "zstd":
            # The standard library cannot read it before Python 3.14. Only conversations are sent so.
            body = {"stream": True, "tools": ["unread"]}
        else:
            try:
                body = json.loads(raw or b"{}")
            except ValueError:
                body = {"text": raw.decode("utf-8", "replace")}
        self.note(body)
        path = self.path.split("?")[0]
        if path.endswith("/token"):
            self.token()
        elif path.endswith("/tokeninfo"):
            self.answer({"email": "somebody@example.com"})
        elif path.endswith("/count_tokens") or path.endswith(":countTokens"):
            self.answer({"input_tokens": 10, "totalTokens": 10})
        elif path.endswith("/messages"):
            self.anthropic(body)
        elif path.endswith("/responses"):
            self.openai_responses(body)
        elif path.endswith("/chat/completions"):
            self.openai_chat(body)
        elif path.endswith(":generateContent") or path.endswith(":streamGenerateContent"):
            self.gemini(body, path)
        else:
            self.answer({}, status=404)

    def body(self):
        if "chunked" in (self.headers.get("transfer-encoding") or ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            raw = b"".join(parts)
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(raw) if self.headers.get("content-encoding") == "gzip" else raw

    def token(self):
        token = self.server.script.token
        if token is None:
            self.answer({"error": "invalid_grant"}, status=400)
            return
        self.answer(
            {
                "access_token": token,
                "refresh_token": token + "-next",
                "id_token": None,
                "token_type": "Bearer",
                "expires_in": 3600,
                "scope": "user:inference user:profile",
            }
        )

    def anthropic(self, body):
        turn, number = self.server.script.turn(body)
        if "tool" in turn:
            block = {"type": "tool_use", "id": f"toolu_{number:04}", "name": turn["tool"], "input": turn["input"]}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(turn["input"])}
            empty, stop = {**block, "input": {}}, "tool_use"
        else:
            block = {"type": "text", "text": turn["text"]}
            delta = {"type": "text_delta", "text": turn["text"]}
            empty, stop = {"type": "text", "text": ""}, "end_turn"
        message = {
            "id": f"msg_{number:04}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 1},
        }
        if not body.get("stream"):
            self.answer({**message, "content": [block], "stop_reason": stop})
            return
        events = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": stop, "stop_sequence": None},
                "usage": {"output_tokens": 5},
            },
            {"type": "message_stop"},
        ]
        self.events(events, named=True)

    def openai_responses(self, body):
        turn, number = self.server.script.turn(body)
        if "tool" in turn:
            item = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": turn["tool"],
                "arguments": json.dumps(turn["input"]),
                "status": "completed",
            }
        else:
            item = {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": turn["text"], "annotations": []}],
            }
        response = {
            "id": f"resp_{number}",
            "object": "response",
            "status": "completed",
            "output": [item],
            "usage": {
                "input_tokens": 1,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 1,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 2,
            },
        }
        if not body.get("stream"):
            self.answer(response)
            return
        events = [
            {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response},
        ]
        self.events(events, named=True)

    def openai_chat(self, body):
        turn, number = self.server.script.turn(body)
        if "tool" in turn:
            function = {"name": turn["tool"], "arguments": json.dumps(turn["input"])}
            call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            end = "tool_calls"
        else:
            message, end = {"role": "assistant", "content": turn["text"]}, "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        common = {"id": f"chat_{number}", "created": 1, "model": body.get("model")}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": end}
            self.answer({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        chunk = {**common, "object": "chat.completion.chunk"}
        events = [
            {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": end}], "usage": usage},
        ]
        self.events(events, end="data: [DONE]\n\n")

    def gemini(self, body, path):
        turn, _ = self.server.script.turn(body)
        if "tool" in turn:
            part = {"functionCall": {"name": turn["tool"], "args": turn["input"]}}
        else:
            part = {"text": turn["text"]}
        answer = {
            "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
            "modelVersion": "scripted",
        }
        if path.endswith(":streamGenerateContent"):
            self.answer(f"data: {json.dumps(answer)}\r\n\r\n".encode(), "text/event-stream")
        else:
            self.answer(answer)


def main():
    parser = argparse.ArgumentParser(description="A model that follows a script.")
    parser.add_argument("--script", required=True)
    parser.add_argument("--record", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--authority", type=Authority)
    arguments = parser.parse_args()
    with open(arguments.script, encoding="utf-8") as file:
        turns = json.load(file)
    model = Model(turns, arguments.record, arguments.port, arguments.authority)
    print(model.port, flush=True)
    model.serve_forever()


if __name__ == "__main__":
    main()
