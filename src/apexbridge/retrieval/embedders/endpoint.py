"""Vectors from any OpenAI-compatible `/embeddings` endpoint."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
import orjson

from apexbridge._json import check_shape
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale, normalised

MAX_BATCH = 100
"""Texts a request."""
TIMEOUT_SECONDS, CONNECT_SECONDS = 30.0, 3.0
FEW_TEXTS_SECONDS = 5.0
"""Somebody waits for a search; nobody waits for a hundred skills."""
REST_SECONDS = 10.0
"""How long an endpoint that failed is left alone; until then every call fails at once."""
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0
AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Answers after which another try can help."""
REFUSED = frozenset({400, 413, 422})
"""Answers that blame the text."""
FEW_TEXTS = 10
MAX_DIMENSIONS = 8_192
NUMBER_BYTES = 30
"""Of one number of a vector, with its comma."""
HEAD_BYTES, HEAD_VALUES = 64 * 1024, 10_000
"""What an answer may have besides the vectors."""
PIECE_BYTES = 64 * 1024
PAIRS = (
    ("commit my changes with a good message", "git commit: Creates git commits with conventional messages"),
    ("what will the weather be like tomorrow", "weather: Tells the weather forecast for a place"),
    ("make a chart out of this spreadsheet", "excel analysis: Reads Excel files and draws charts"),
    ("translate this letter into French", "translator: Translates text between languages"),
    ("find me a cheap flight to Rome", "flight search: Searches flights by price and date"),
    ("resize these photos", "image tools: Crops, resizes and converts pictures"),
    ("帮我写一封请假邮件", "邮件助手: 起草和发送电子邮件"),
    ("把这个文件转成PDF", "文档转换: 将文档转换为PDF格式"),
)
LEAST_REACH = 0.05
"""A model that tells nothing apart must not make everything look alike."""
logger = logging.getLogger(__name__)


class RefusedTextError(EmbeddingError):
    """Not the endpoint is at fault but what it was asked."""


class EndpointModel:
    """A model behind an address; how long its vectors are is known from its first answer."""

    english_only = False

    def __init__(self, *, base_url: str, model: str, api_key: str | None, dimensions: int = 0) -> None:
        self.id = f"openai:{model}"
        self.dimensions = dimensions
        self._model = model
        self._url = f"{base_url.rstrip('/')}/embeddings"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(headers=headers)
        self._is_assumed = False
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
        if len(texts) == 1:
            return normalised(self._ask(texts))
        batches = [self._read(texts[start : start + MAX_BATCH]) for start in range(0, len(texts), MAX_BATCH)]
        return normalised(np.concatenate(batches)) if batches else np.zeros((0, self.dimensions), np.float32)

    def _read(self, texts: Sequence[str]) -> Floats:
        """Vectors of many; a single text that the endpoint refuses means nothing and spoils none of the others."""
        try:
            return self._ask(texts)
        except RefusedTextError:
            if len(texts) == 1:
                if not self.dimensions:
                    raise
                logger.warning("the embedding endpoint refused a text of %d characters", len(texts[0]))
                return np.zeros((1, self.dimensions), np.float32)
            half = len(texts) // 2
            return np.concatenate([self._read(texts[:half]), self._read(texts[half:])])

    def _ask(self, texts: Sequence[str]) -> Floats:
        if time.monotonic() < self._rests_until:
            raise EmbeddingError(self._problem)
        pause = FIRST_PAUSE_SECONDS
        for left in reversed(range(ATTEMPTS)):
            try:
                response, body = self._post(texts)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem, wait = f"is not reachable ({type(error).__name__})", pause
                if isinstance(error, httpx.TimeoutException):
                    break
            else:
                if response.is_success:
                    return self._vectors(body, len(texts))
                if response.status_code in REFUSED:
                    raise RefusedTextError(f"The embedding endpoint refused a text ({response.status_code}).")
                problem, wait = f"answered {response.status_code}", _told_pause(response, pause)
                if response.status_code not in AGAIN:
                    break
            if left:
                time.sleep(min(wait, LONGEST_PAUSE_SECONDS))
                pause *= 2
        self._problem = f"The embedding endpoint {problem}; check APEX_EMBEDDING_BASE_URL and its key."
        self._rests_until = time.monotonic() + REST_SECONDS
        raise EmbeddingError(self._problem)

    def _post(self, texts: Sequence[str]) -> tuple[httpx.Response, bytes]:
        """The answer and its body, of which no more is read than the vectors can take."""
        most = HEAD_BYTES + len(texts) * MAX_DIMENSIONS * NUMBER_BYTES
        request = {"model": self._model, "input": list(texts)}
        with self._client.stream("POST", self._url, json=request, timeout=_timeout(len(texts))) as response:
            body = bytearray()
            for piece in response.iter_bytes(PIECE_BYTES):
                body += piece
                if len(body) > most:
                    raise EmbeddingError("The embedding endpoint's answer is larger than its vectors can be.")
        return response, bytes(body)

    def _vectors(self, body: bytes, count: int) -> Floats:
        try:
            check_shape(body, max_values=HEAD_VALUES + count * MAX_DIMENSIONS)
            data: list[dict[str, Any]] = sorted(orjson.loads(body)["data"], key=lambda item: int(item["index"]))
            vectors = np.array([item["embedding"] for item in data], np.float32)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise EmbeddingError("The embedding endpoint's answer is not of the form {data: [{embedding}]}.") from error
        if vectors.ndim != 2 or len(vectors) != count or not _are_proper(vectors):
            raise EmbeddingError(f"The embedding endpoint did not answer with {count} proper vectors.")
        if self.dimensions and vectors.shape[1] != self.dimensions and not self._is_assumed:
            raise EmbeddingError(
                f"The embedding endpoint answered vectors of {vectors.shape[1]} dimensions "
                f"where {self.dimensions} were expected."
            )
        self.dimensions, self._is_assumed = vectors.shape[1], False
        return vectors

    def assume(self, dimensions: int) -> None:
        """Vectors are of this length until the endpoint says otherwise."""
        self.dimensions, self._is_assumed = dimensions, True


def _told_pause(response: httpx.Response, pause: float) -> float:
    """How long the endpoint asks to be left alone, where it says so in seconds."""
    told = response.headers.get("retry-after", "")
    return float(told) if told.isascii() and told.isdigit() else pause


def _timeout(texts: int) -> httpx.Timeout:
    return httpx.Timeout(FEW_TEXTS_SECONDS if texts <= FEW_TEXTS else TIMEOUT_SECONDS, connect=CONNECT_SECONDS)


def _are_proper(vectors: Floats) -> bool:
    """Finite, and each of them pointing somewhere."""
    return bool(vectors.shape[1]) and bool(np.isfinite(vectors).all()) and bool(vectors.any(axis=1).all())


def measured_scale(embed: Callable[[Sequence[str]], Floats]) -> Scale:
    """Cosines of the pairs, and of everything that is no pair."""
    vectors = embed([text for pair in PAIRS for text in pair])
    cosines = vectors[0::2] @ vectors[1::2].T
    together = np.eye(len(PAIRS), dtype=np.bool_)
    unrelated, related = float(cosines[~together].mean()), float(cosines[together].mean())
    return Scale(unrelated=unrelated, related=max(related, unrelated + LEAST_REACH))
