"""An S3 server for tests on loopback, from the package moto. Its first line is its address; it ends with its standard input.

A bucket can be lost in the middle, as with a server that is killed: `/__down?bucket=B&at=N&how=before` ends the connection of the N-th request that changes
something in it before it is carried out, `how=after` when it was and before it is answered. From then on every connection ends, until `/__up?bucket=B`.
Both answer with the number of requests that changed something since the last time.
"""

import collections
import sys
import threading
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

backend = DomainDispatcherApplication(create_backend_app)
lock = threading.Lock()
buckets = collections.defaultdict(lambda: {"count": 0, "at": 0, "how": "", "down": False})


class Gone(Exception):
    pass


class Silent(WSGIRequestHandler):
    def log(self, type, message, *args):
        pass


def control(path, query):
    with lock:
        bucket = buckets[query["bucket"][0]]
        count = bucket["count"]
        bucket.update(count=0, at=int(query.get("at", ["0"])[0]), how=query.get("how", [""])[0], down=False)
        return str(count).encode()


def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path.startswith("/__"):
        answer = control(path, parse_qs(environ.get("QUERY_STRING", "")))
        start_response("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]
    changes = environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE")
    with lock:
        bucket = buckets[path.split("/")[1]]
        down = bucket["down"]
        bucket["count"] += changes and not down
        hit = changes and not down and bucket["count"] == bucket["at"]
        bucket["down"] |= hit
    if not down and not (hit and bucket["how"] == "before"):
        answer = list(backend(environ, start_response))
        if not hit:
            return answer
    environ["werkzeug.socket"].shutdown(2)
    raise Gone()


server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Silent)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
server.serve_forever()
