"""An S3 server as a process of its own (moto's), and a proxy before it that makes requests fail."""

from __future__ import annotations

import http.client
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

Fault = Callable[[str, str], str | None]
"""Of a request's method and path: None, or what happens to it: '500', '503', '403', 'reset', 'cut' or 'hang'."""

BUCKET = "bucket"


class Proxy(http.server.ThreadingHTTPServer):
    """Passes requests on to a server, or not."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = port
        self.fault: Fault = lambda method, path: None
        self.requests: list[tuple[str, str, str | None]] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is none."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else the body waits, after the headers, until the client has acknowledged these: 40 ms a request.
    disable_nagle_algorithm = True
    server: Proxy

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""

    def _pass(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        kind = self.server.fault(self.command, self.path)
        self.server.requests.append((self.command, self.path, kind))
        if kind == "hang":
            while self.server.fault(self.command, self.path) == "hang":
                time.sleep(0.05)
            self.close_connection = True
            return
        if kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.close_connection = True
            return
        if kind in ("500", "503", "403"):
            codes = {"500": "InternalError", "503": "SlowDown", "403": "AccessDenied"}
            text = f"<Error><Code>{codes[kind]}</Code><Message>made to fail</Message></Error>".encode()
            self.send_response(int(kind))
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        own = ("transfer-encoding", "content-length")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in own}
        behind.request(self.command, self.path, body=body, headers=headers)
        answer = behind.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", size or "0")
        self.end_headers()
        if kind == "cut" and content:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(content)
        behind.close()

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return found

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass


@contextmanager
def s3_server() -> Iterator[Proxy]:
    """A running server with an empty bucket, behind a proxy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MOTO_ALLOW_NONEXISTENT_REGION": "1"},
    )
    proxy = Proxy(port)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        for _ in range(600):
            try:
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
                    connection.request("PUT", f"/{BUCKET}")
                    if connection.getresponse().status == 200:
                        break
            except OSError:
                time.sleep(0.1)
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
        server.terminate()
        server.wait()


def environment(url: str) -> dict[str, str]:
    """What makes s3:// lead there, without waiting long between the attempts of the client."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "very-secret-indeed",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
