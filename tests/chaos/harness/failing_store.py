"""A proxy in front of an object store or a web server that injects failures."""

import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_SLOW_SECONDS = 1.0  # for each byte


@dataclass
class Plan:
    """Which requests fail, and how.

    Of the requests with one of `methods` whose path contains `within`, the first `skip` are answered and the
    next `count` fail.

    `kind` is 503, 500, reset (the connection is reset before the response), truncated (the connection is
    reset within the body), short (the response declares and sends only half of its body), or slow (one byte a
    second).
    """

    kind: str = ""
    within: str = ""
    methods: tuple[str, ...] = ("GET", "PUT", "POST", "HEAD")
    skip: int = 0
    count: int = 1 << 40
    failed: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def strikes(self, method: str, path: str) -> bool:
        """Count a request, and return whether it fails."""
        with self.lock:
            if not self.kind or method not in self.methods or self.within not in path:
                return False
            if self.skip:
                self.skip -= 1
                return False
            if self.failed >= self.count:
                return False
            self.failed += 1
            return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Proxy"

    def log_message(self, *_: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        kind = self.server.plan.kind if self.server.plan.strikes(self.command, self.path) else ""
        if kind == "reset":
            self._reset()
        elif kind in ("503", "500"):
            self._refuse(int(kind))
        else:
            self._forward(body, kind)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _refuse(self, status: int) -> None:
        code = "SlowDown" if status == 503 else "InternalError"
        said = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>Please reduce your request rate.</Message></Error>"
        body = b"" if self.command == "HEAD" else said.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _forward(self, body: bytes, kind: str) -> None:
        to = self.server.behind
        link = http.client.HTTPConnection(to.hostname or "", to.port or 80, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
        if body:
            headers["Content-Length"] = str(len(body))
        link.request(self.command, self.path, body, headers)
        answer = link.getresponse()
        content = answer.read()
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        if kind == "short":
            content = content[: len(content) // 2]
            length = str(len(content))
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        with suppress(OSError):
            self._send(content if self.command != "HEAD" else b"", kind)

    def _send(self, content: bytes, kind: str) -> None:
        if kind == "truncated":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self._reset()
        elif kind == "slow":
            for position in range(len(content)):
                if self.server.plan.kind != "slow":
                    self.close_connection = True
                    return
                self.wfile.write(content[position : position + 1])
                self.wfile.flush()
                time.sleep(_SLOW_SECONDS)
        else:
            self.wfile.write(content)


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.plan = urlsplit(behind), Plan()

    def handle_error(self, *_: Any) -> None:
        pass  # a client that left


@contextmanager
def proxy(behind: str) -> Iterator[Proxy]:
    """Start a proxy for the server at the URL `behind`. Its `plan` may be replaced at any time."""
    server = Proxy(behind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.plan = Plan()
        server.shutdown()
        server.server_close()


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"
