"""Vectors from any OpenAI-compatible `/embeddings` endpoint."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import orjson

from apexbridge._json import check_shape
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale, normalized
from apexbridge.retrieval.embedders.scale import measure_scale

MAX_BATCH = 100
"""Texts per request."""
TIMEOUT_SECONDS, CONNECT_SECONDS = 30.0, 3.0
SEARCH_TIMEOUT_SECONDS = 5.0
"""For few texts: a user waits for a search."""
COOLDOWN_SECONDS = 10.0
"""After a failure, calls fail immediately for this long."""
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0
RETRY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
REFUSED_STATUSES = frozenset({400, 413, 422})
"""The text is at fault."""
FEW_TEXTS = 10
MAX_DIMENSIONS = 8_192
NUMBER_BYTES = 30
"""Of one number of a vector, with its comma."""
HEAD_BYTES, HEAD_VALUES = 64 * 1024, 10_000
"""What a response may have besides the vectors."""
CHUNK_BYTES = 64 * 1024
ENDPOINT_PREFIX = "openai:"
"""Of the ids of remote models."""
logger = logging.getLogger(__name__)


class RefusedTextError(EmbeddingError):
    """The endpoint refused a text."""


class EndpointModel:
    """A remote model. The length of its vectors is known from its first response."""

    english_only = False
    weight = 1.0

    def __init__(self, *, base_url: str, model: str, api_key: str | None, dimensions: int = 0) -> None:
        self.id = f"{ENDPOINT_PREFIX}{model}"
        self.dimensions = dimensions
        self._model = model
        self._url = f"{base_url.rstrip('/')}/embeddings"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(headers=headers)
        self._dimensions_assumed = False
        self._problem = ""
        self._retry_at = 0.0
        self._scale: Scale | None = None
        self._lock = threading.Lock()

    def scale(self) -> Scale:
        """Measured once, with pairs of texts that are known to be related."""
        with self._lock:
            if self._scale is None:
                self._scale = measure_scale(self.embed)
            return self._scale

    def embed(self, texts: Sequence[str], *, are_requests: bool = False) -> Floats:
        """Endpoints know no difference between requests and documents."""
        if len(texts) == 1:
            return normalized(self._request(texts))
        batches = [self._embed_batch(texts[start : start + MAX_BATCH]) for start in range(0, len(texts), MAX_BATCH)]
        return normalized(np.concatenate(batches)) if batches else np.zeros((0, self.dimensions), np.float32)

    def _embed_batch(self, texts: Sequence[str]) -> Floats:
        """Vectors of many texts. A text that the endpoint refuses gets a zero vector, and the others their own."""
        try:
            return self._request(texts)
        except RefusedTextError:
            if len(texts) == 1:
                if not self.dimensions:
                    raise
                logger.warning("the embedding endpoint refused a text of %d characters", len(texts[0]))
                return np.zeros((1, self.dimensions), np.float32)
            half = len(texts) // 2
            return np.concatenate([self._embed_batch(texts[:half]), self._embed_batch(texts[half:])])

    def _request(self, texts: Sequence[str]) -> Floats:
        if time.monotonic() < self._retry_at:
            raise EmbeddingError(self._problem)
        pause = FIRST_PAUSE_SECONDS
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                response, body = self._post(texts)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem, wait = f"is not reachable ({type(error).__name__})", pause
                if isinstance(error, httpx.TimeoutException):
                    break
            else:
                if response.is_success:
                    return self._vectors(body, len(texts))
                if response.status_code in REFUSED_STATUSES:
                    raise RefusedTextError(f"The embedding endpoint refused a text ({response.status_code}).")
                problem, wait = f"answered {response.status_code}", _retry_after(response, pause)
                if response.status_code not in RETRY_STATUSES:
                    break
            if attempts_left:
                time.sleep(min(wait, LONGEST_PAUSE_SECONDS))
                pause *= 2
        self._problem = f"The embedding endpoint {problem}; check APEX_EMBEDDING_BASE_URL and its key."
        self._retry_at = time.monotonic() + COOLDOWN_SECONDS
        raise EmbeddingError(self._problem)

    def _post(self, texts: Sequence[str]) -> tuple[httpx.Response, bytes]:
        """The response and its body, which is read up to the size that the vectors can have."""
        max_bytes = HEAD_BYTES + len(texts) * MAX_DIMENSIONS * NUMBER_BYTES
        request = {"model": self._model, "input": list(texts)}
        seconds = SEARCH_TIMEOUT_SECONDS if len(texts) <= FEW_TEXTS else TIMEOUT_SECONDS
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        with self._client.stream("POST", self._url, json=request, timeout=timeout) as response:
            body = bytearray()
            for chunk in response.iter_bytes(CHUNK_BYTES):
                body += chunk
                if len(body) > max_bytes:
                    raise EmbeddingError("The embedding endpoint's answer is larger than its vectors can be.")
        return response, bytes(body)

    def _vectors(self, body: bytes, count: int) -> Floats:
        try:
            check_shape(body, max_values=HEAD_VALUES + count * MAX_DIMENSIONS)
            data: list[dict[str, Any]] = sorted(orjson.loads(body)["data"], key=lambda item: int(item["index"]))
            vectors = np.array([item["embedding"] for item in data], np.float32)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise EmbeddingError("The embedding endpoint's answer is not of the form {data: [{embedding}]}.") from error
        is_matrix = vectors.ndim == 2 and len(vectors) == count and vectors.shape[1] > 0
        if not is_matrix or not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
            raise EmbeddingError(f"The embedding endpoint did not answer with {count} proper vectors.")
        if self.dimensions and vectors.shape[1] != self.dimensions and not self._dimensions_assumed:
            raise EmbeddingError(
                f"The embedding endpoint answered vectors of {vectors.shape[1]} dimensions "
                f"where {self.dimensions} were expected."
            )
        self.dimensions, self._dimensions_assumed = vectors.shape[1], False
        return vectors

    def assume(self, dimensions: int) -> None:
        """Expect this length until the endpoint answers with another one."""
        self.dimensions, self._dimensions_assumed = dimensions, True


def _retry_after(response: httpx.Response, default: float) -> float:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isascii() and seconds.isdigit() else default
