"""An S3 server for tests on loopback, from the package moto: `s3_server.py DIRECTORY [PORT]`. Its first line is its address; it ends with its standard input.

What a request changed lies in the directory, synced, before the request is answered: a server that was killed and is started again holds everything that it
had answered for. `/__die?at=N&how=before` kills the process at its N-th request from then on, before the request is carried out; `how=after` when it was and is
kept, before it is answered. Both that and `/__count` answer with the number of requests since the last time.
"""

import copyreg
import os
import pickle
import random
import signal
import sys
import threading
from urllib.parse import parse_qs

from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from moto.s3.utils import _VersionedKeyStore
from werkzeug.serving import WSGIRequestHandler, make_server

directory = sys.argv[1]
backend = DomainDispatcherApplication(create_backend_app)
buckets = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets
lock = threading.Lock()
state = {"count": 0, "at": 0, "how": ""}


class Silent(WSGIRequestHandler):
    def log(self, type, message, *args):
        pass


def with_versions(lists):
    store = _VersionedKeyStore()
    for key, versions in lists:
        store.setlist(key, versions)
    return store


# Its items are the newest versions only.
copyreg.pickle(_VersionedKeyStore, lambda store: (with_versions, (list(store.lists()),)))


def load():
    for name in os.listdir(directory):
        if not name.startswith("."):
            with open(f"{directory}/{name}", "rb") as file:
                buckets[name] = pickle.load(file)


def save(name):
    if name not in buckets:
        return
    new = f"{directory}/.new"
    with open(new, "wb") as file:
        pickle.dump(buckets[name], file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, f"{directory}/{name}")


def die(hit, how):
    if hit and state["how"] == how:
        os.kill(os.getpid(), signal.SIGKILL)


def app(environ, start_response):
    path = environ["PATH_INFO"]
    with lock:
        if path.startswith("/__"):
            query = parse_qs(environ.get("QUERY_STRING", ""))
            answer = str(state["count"]).encode()
            state.update(count=0, at=int(query.get("at", ["0"])[0]), how=query.get("how", [""])[0])
            start_response("200 OK", [("Content-Length", str(len(answer)))])
            return [answer]
        state["count"] += 1
        hit = state["count"] == state["at"]
        die(hit, "before")
        answer = list(backend(environ, start_response))
        if environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE"):
            save(path.split("/")[1])
        die(hit, "after")
        return answer


def listen():
    """On a port below those that the kernel gives to connections, so that it is free when the server comes back."""
    ports = sys.argv[2:] or random.sample(range(15000, 32000), 100)
    for port in ports:
        try:
            return make_server("127.0.0.1", int(port), app, threaded=True, request_handler=Silent)
        except (OSError, SystemExit):
            continue
    sys.exit("no port is free")


load()
server = listen()
print(f"http://127.0.0.1:{server.server_port}", flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
server.serve_forever()
