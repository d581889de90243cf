"""An OpenAI-compatible embedding endpoint over real HTTP on loopback; the test chooses its answers."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Answer = Callable[[list[str]], tuple[int, Any]]


class Endpoint:
    """Records requests; `answer` may be replaced at any time."""

    def __init__(self, dimensions: int = 64) -> None:
        self.dimensions = dimensions
        self.batches: list[list[str]] = []
        self.keys: list[str | None] = []
        self.answer: Answer = self.vectors
        self.url = ""

    def vectors(self, texts: list[str]) -> tuple[int, Any]:
        """A bag of words, hashed: texts with common words are near each other."""
        data = [{"index": index, "embedding": self._vector(text)} for index, text in enumerate(texts)]
        return 200, {"data": data[::-1], "model": "bag"}

    def _vector(self, text: str) -> list[float]:
        vector = np.full(self.dimensions, 0.01)
        for word in text.lower().replace(":", " ").replace(",", " ").split():
            vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % self.dimensions] += 1
        return [float(value) for value in vector]


@contextmanager
def embedding_endpoint(dimensions: int = 64) -> Iterator[Endpoint]:
    """A server that answers until the block ends."""
    endpoint = Endpoint(dimensions)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            endpoint.batches.append(body["input"])
            endpoint.keys.append(self.headers.get("authorization"))
            status, answer = endpoint.answer(body["input"])
            payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Do not log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
