"""A server of HTTP on loopback that means harm: it answers slowly, without an end, or so that it unpacks to more."""

import gzip
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE = bytes(1 << 20)
PAUSE_S = 0.05
BOMB = gzip.compress(gzip.compress(bytes(200_000_000), 1))
ANSWERS = {
    "its headers drip": (b"HTTP/1.1 200 OK\r\nX: ", itertools.repeat(b"x")),
    "its content drips": (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", itertools.repeat(b" ")),
    "its chunks drip": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", itertools.repeat(b"x")),
    "its trailer has no end": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", itertools.repeat(b"X: y\r\n")
    ),
    "it unpacks to nothing": (  # blocks of gzip that are empty
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"")[:10],
        itertools.repeat(b"\0\0\0\xff\xff" * 9),
    ),
    "it has no end": (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", itertools.repeat(PIECE)),
    "it leads elsewhere without an end": (b"HTTP/1.1 302 Found\r\nLocation: /a\r\n\r\n", itertools.repeat(PIECE)),
    "it leads to another region without an end": (
        b"HTTP/1.1 301 Moved\r\nx-amz-bucket-region: eu-west-1\r\nLocation: /a\r\n\r\n", itertools.repeat(PIECE)
    ),
    "it asks for a login without an end": (
        b"HTTP/1.1 401 No\r\nWww-Authenticate: Basic realm=x\r\n\r\n", itertools.repeat(PIECE)
    ),
    "it fails without an end": (b"HTTP/1.1 500 No\r\n\r\n", itertools.repeat(PIECE)),
    "it is packed twice": (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\n\r\n", [BOMB]),
}  # fmt: skip


class Server:
    """Answers everything alike; ``sent`` is how much of it went out (bytes)."""

    def __init__(self, kind: str) -> None:
        self.kind, self.sent = kind, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.ended = threading.Event()

    def serve(self) -> None:
        """Answer until the test is over."""
        with suppress(OSError):
            while not self.ended.is_set():
                threading.Thread(target=self.answer, args=self.socket.accept()[:1], daemon=True).start()

    def answer(self, client: socket.socket) -> None:
        """Answer one client."""
        head, pieces = ANSWERS[self.kind]
        with client, suppress(OSError):
            client.recv(100_000)
            client.sendall(head)
            for piece in pieces:
                if self.ended.is_set():
                    return
                client.sendall(piece)
                self.sent += len(piece)
                if len(piece) < 100:
                    time.sleep(PAUSE_S)


@contextmanager
def harmful(kind: str) -> Iterator[Server]:
    """Run a server that answers so."""
    server = Server(kind)
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield server
    finally:
        server.ended.set()
        server.socket.close()
