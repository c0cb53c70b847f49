"""An HTTP server on this machine whose answers a test writes."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalServer:
    """``answer(request, number)`` gives (status, headers, body) or None to close the connection.

    ``request`` is the JSON that came; bodies that are not bytes are sent as JSON.
    """

    def __init__(self, answer):
        self.requests, self.headers = [], []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.requests.append(body)
                    outer.headers.append(dict(self.headers))
                    number = len(outer.requests)
                reply = answer(body, number)
                if reply is None:
                    self.close_connection = True
                    return
                status, headers, content = reply
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # a client that has gone is what some tests make

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}/score"

    @property
    def base_url(self):
        return self.url.removesuffix("/score") + "/v1"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def completion(text):
    """A chat completion, as far as it is read."""
    return 200, {}, {"choices": [{"message": {"role": "assistant", "content": text}}]}
