"""Vectors from any OpenAI-compatible `/embeddings` endpoint."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from apexbridge.retrieval.embedders.anchors import measured_scale
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale, normalised

MAX_BATCH = 100
"""Texts a request."""
TIMEOUT_SECONDS, CONNECT_SECONDS = 30.0, 5.0
REST_SECONDS = 10.0
"""How long an endpoint that failed is left alone; until then every call fails at once."""
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0
AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Answers after which another try can help."""


class EndpointModel:
    """A model behind an address; how long its vectors are is known from its first answer."""

    english_only = False

    def __init__(self, *, base_url: str, model: str, api_key: str | None, dimensions: int = 0) -> None:
        self.id = f"openai:{model}"
        self.dimensions = dimensions
        self._model = model
        self._url = f"{base_url.rstrip('/')}/embeddings"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=CONNECT_SECONDS), headers=headers)
        self._problem = ""
        self._rests_until = 0.0
        self._scale: Scale | None = None
        self._lock = threading.Lock()

    def scale(self) -> Scale:
        """Measured by asking about pairs that are known to belong together."""
        with self._lock:
            if self._scale is None:
                self._scale = measured_scale(self.embed)
            return self._scale

    def embed(self, texts: Sequence[str]) -> Floats:
        """One vector of length 1 a text."""
        batches = [self._ask(texts[start : start + MAX_BATCH]) for start in range(0, len(texts), MAX_BATCH)]
        return normalised(np.concatenate(batches)) if batches else np.zeros((0, self.dimensions), np.float32)

    def _ask(self, texts: Sequence[str]) -> Floats:
        if time.monotonic() < self._rests_until:
            raise EmbeddingError(self._problem)
        pause = FIRST_PAUSE_SECONDS
        for left in reversed(range(ATTEMPTS)):
            try:
                response = self._client.post(self._url, json={"model": self._model, "input": list(texts)})
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem, wait = f"is not reachable ({type(error).__name__})", pause
                if isinstance(error, httpx.TimeoutException):
                    break
            else:
                if response.is_success:
                    return self._vectors(response, len(texts))
                problem, wait = f"answered {response.status_code}", _told_pause(response, pause)
                if response.status_code not in AGAIN:
                    break
            if left:
                time.sleep(min(wait, LONGEST_PAUSE_SECONDS))
                pause *= 2
        self._problem = f"The embedding endpoint {problem}; check APEX_EMBEDDING_BASE_URL and its key."
        self._rests_until = time.monotonic() + REST_SECONDS
        raise EmbeddingError(self._problem)

    def _vectors(self, response: httpx.Response, count: int) -> Floats:
        try:
            data: list[dict[str, Any]] = sorted(response.json()["data"], key=lambda item: int(item["index"]))
            vectors = np.array([item["embedding"] for item in data], np.float32)
        except (ValueError, KeyError, TypeError) as error:
            raise EmbeddingError("The embedding endpoint's answer is not of the form {data: [{embedding}]}.") from error
        if vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1] or not np.isfinite(vectors).all():
            raise EmbeddingError(f"The embedding endpoint did not answer with {count} proper vectors.")
        if self.dimensions and vectors.shape[1] != self.dimensions:
            raise EmbeddingError(
                f"The embedding endpoint answered vectors of {vectors.shape[1]} dimensions "
                f"where {self.dimensions} were expected."
            )
        self.dimensions = vectors.shape[1]
        return vectors


def _told_pause(response: httpx.Response, pause: float) -> float:
    """How long the endpoint asks to be left alone, where it says so in seconds."""
    told = response.headers.get("retry-after", "")
    return float(told) if told.isdigit() else pause
