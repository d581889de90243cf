"""How to use a model, from the files that its publisher ships: those of sentence-transformers and transformers."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.embedders.model_card import (
    CARD_FILE,
    MAX_TOKENS,
    RERANKER_TOKENS,
    TOKENIZER_FILE,
    ModelCard,
    ModelKind,
    Pooling,
    checked_card,
    read_any_json,
    read_json,
)
from apexbridge.retrieval.embedders.onnx_file import OnnxFile, is_beneath, read_onnx_file

MODEL_FILES = (
    "onnx/model_quantized.onnx",
    "onnx/model_int8.onnx",
    "model_quantized.onnx",
    "onnx/model.onnx",
    "model.onnx",
)
"""Of several, the quantized one: a quarter of the size, and several times as fast."""
SMALL_FILES = re.compile(
    r"(apex-model|config|config_sentence_transformers|modules|sentence_bert_config|tokenizer|tokenizer_config)\.json"
    r"|\d+_\w+/config\.json"
)
"""What else is needed of a published model."""
POOLED_OUTPUT = "sentence_embedding"
"""One vector per text, as the publisher makes it."""
TOKEN_OUTPUTS = ("last_hidden_state", "token_embeddings")
MODULES = {"Transformer", "Pooling", "Normalize"}
"""Of sentence-transformers. Vectors are always normalized."""
POOLINGS: Mapping[str, Pooling] = {
    "cls": "cls",
    "cls_token": "cls",
    "mean": "mean",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean",  # the same direction
    "lasttoken": "last",
}
"""By their names in the file of the pooling."""
BGE_ENGLISH_PREFIX = "Represent this sentence for searching relevant passages: "
INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
FOREIGN_PROBE = "把这份发票转换为电子表格并发给财务团队"
"""Different characters. A tokenizer for English has no words for them: they become unknown, or bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    words: frozenset[str]
    """Of the name of a model."""
    pooling: Pooling
    request_prefix: str = ""
    document_prefix: str = ""


FAMILIES = (
    Family(words=frozenset({"qwen3", "embedding"}), pooling="last", request_prefix=INSTRUCTION),
    Family(words=frozenset({"e5", "instruct"}), pooling="mean", request_prefix=f"{INSTRUCTION} "),
    Family(words=frozenset({"e5"}), pooling="mean", request_prefix="query: ", document_prefix="passage: "),
    Family(words=frozenset({"bge", "en"}), pooling="cls", request_prefix=BGE_ENGLISH_PREFIX),
    Family(words=frozenset({"bge"}), pooling="cls"),
    Family(words=frozenset({"gte", "multilingual"}), pooling="cls"),
    Family(words=frozenset({"gte", "v1"}), pooling="cls"),
    Family(words=frozenset({"gte"}), pooling="mean"),
)
"""For models whose files name neither pooling nor prefixes, such as conversions. The first that fits is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    card: ModelCard
    guesses: tuple[str, ...]
    """What its files do not say, and what is assumed instead."""


def read_model(folder: Path, name: str, *, published_as: str = "", changes: Mapping[str, Any] | None = None) -> Reading:
    """Read the card of a model, or derive it. `changes` are fields that the user sets. Raises EmbeddingError."""
    changes = changes or {}
    fields, guesses = read_json(folder / CARD_FILE) if (folder / CARD_FILE).exists() else None, list[str]()
    if fields is None:
        fields, guesses = _derived(folder, (published_as, name), changes)
    return Reading(card=checked_card(folder, {**fields, "name": name, **changes}), guesses=tuple(guesses))


def needed_files(folder: str, names: Collection[str], card: Mapping[str, Any]) -> list[str]:
    """Of the files of a model, the best ONNX file first, then the small ones. Raises EmbeddingError."""
    file = card.get("file") or next((name for name in MODEL_FILES if name in names), MODEL_FILES[-1])
    for needed in (file, TOKENIZER_FILE):
        if not isinstance(needed, str) or not is_beneath(needed) or needed not in names:
            raise EmbeddingError(f"The model in {folder} has no file {needed}.")
    return [file, *(name for name in sorted(names) if SMALL_FILES.fullmatch(name))]


def _derived(folder: Path, names: Sequence[str], changes: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    config = read_json(folder / "config.json")
    file = next((name for name in MODEL_FILES if (folder / name).is_file()), MODEL_FILES[-1])
    if not (folder / file).is_file():
        raise EmbeddingError(f"The model in {folder} has no file {file}.")
    onnx_file, kind = read_onnx_file(folder / file), _kind(config)
    is_pooled = kind == "embedding" and POOLED_OUTPUT in onnx_file.outputs
    most = MAX_TOKENS if kind == "embedding" else RERANKER_TOKENS
    sentence = _optional_json(folder / "sentence_bert_config.json")
    limits = (sentence.get("max_seq_length"), config.get("max_position_embeddings"), most)
    fields: dict[str, Any] = {
        "kind": kind,
        "file": file,
        "data_files": [str(Path(file).parent / name) for name in onnx_file.data_files],
        "dimensions": _dimensions(onnx_file, config) if kind == "embedding" else 1,
        "max_tokens": min(limit for limit in limits if isinstance(limit, int)),
        "output": POOLED_OUTPUT if is_pooled else "",
    }
    if "english_only" not in changes:
        fields["english_only"] = _reads_english_only(folder / TOKENIZER_FILE)
    if kind == "reranker":
        return fields, []
    family = _family([*names, str(config.get("_name_or_path") or "").rpartition("/")[2]])
    guesses = []
    pooling_config = {} if is_pooled else _pooling_config(folder)
    if not is_pooled and "pooling" not in changes:
        pooling = _pooling(folder, pooling_config)
        if pooling is None:
            pooling = family.pooling if family else "mean"
            guesses.append(
                f"Its files do not say how the vectors of its tokens become one: {pooling} is assumed"
                f"{_as_family(family)}. See its documentation, and choose another one with --pooling."
            )
        fields["pooling"] = pooling
    prefixes = _prompts(folder)
    if prefixes is None and family and not {"request_prefix", "document_prefix"} & set(changes):
        prefixes = (family.request_prefix, family.document_prefix)
        if any(prefixes):
            guesses.append(
                f"Its files name no prefixes: {prefixes[0]!r} before requests and {prefixes[1]!r} before skills are "
                f"assumed{_as_family(family)}. Choose others with --request-prefix and --document-prefix."
            )
    fields["request_prefix"], fields["document_prefix"] = prefixes or ("", "")
    used = {**fields, **changes}
    if pooling_config.get("include_prompt") is False and (used["request_prefix"] or used["document_prefix"]):
        raise EmbeddingError(f"The model in {folder} leaves its prefixes out of the pooling, which is not supported.")
    return fields, guesses


def _as_family(family: Family | None) -> str:
    return f", as for the models of {' '.join(sorted(family.words))}" if family else ""


def _kind(config: Mapping[str, Any]) -> ModelKind:
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    return "reranker" if str(named).endswith("ForSequenceClassification") else "embedding"


def _dimensions(onnx_file: OnnxFile, config: Mapping[str, Any]) -> Any:
    """Of the output if the file says it, else of the configuration."""
    output = next((name for name in (POOLED_OUTPUT, *TOKEN_OUTPUTS) if name in onnx_file.outputs), "")
    return onnx_file.outputs.get(output) or config.get("hidden_size") or config.get("dim")


def _family(names: Sequence[str]) -> Family | None:
    """The first name that is of a family decides."""
    words = [set(re.split(r"[^a-z0-9]+", name.lower())) for name in names]
    return next((family for own in words for family in FAMILIES if family.words <= own), None)


def _pooling_config(folder: Path) -> dict[str, Any]:
    """The file of the pooling, where the list of modules has it; empty if there is none."""
    modules = read_any_json(folder / "modules.json") if (folder / "modules.json").exists() else []
    path = "1_Pooling"
    for module in modules if isinstance(modules, list) else [modules]:
        kind = str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else "None"
        if kind not in MODULES:
            raise EmbeddingError(
                f"The model in {folder} has the module {kind}, which is not supported: export it to ONNX with the "
                f"output {POOLED_OUTPUT}."
            )
        if kind == "Pooling":
            path = str(module.get("path"))
    return _optional_json(folder / path / "config.json") if re.fullmatch(r"\w+", path) else {}


def _pooling(folder: Path, config: Mapping[str, Any]) -> Pooling | None:
    prefix, named = "pooling_mode_", config.get("pooling_mode")
    modes = [key.removeprefix(prefix) for key in config if key.startswith(prefix) and config[key] is True]
    modes = [str(named)] if named else modes
    if not modes:
        return None
    if len(modes) > 1 or modes[0] not in POOLINGS:
        raise EmbeddingError(
            f"The model in {folder} has the pooling {' + '.join(modes)}, which is not supported. There is: "
            "mean, cls, last."
        )
    return POOLINGS[modes[0]]


def _prompts(folder: Path) -> tuple[str, str] | None:
    """The prefixes of requests and documents; None if none is named."""
    prompts = _optional_json(folder / "config_sentence_transformers.json").get("prompts")
    if not isinstance(prompts, dict):
        return None
    document = prompts.get("document", prompts.get("passage"))
    found = tuple(own if own is not None else "" for own in (prompts.get("query"), document))
    if not all(isinstance(own, str) for own in found):
        raise EmbeddingError(f"The prompts in {folder / 'config_sentence_transformers.json'} are not texts.")
    return (str(found[0]), str(found[1])) if any(found) else None


def _reads_english_only(path: Path) -> bool:
    try:
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        ids = tokenizer.encode(FOREIGN_PROBE, add_special_tokens=False).ids
    except Exception as error:  # of tokenizers
        raise EmbeddingError(f"{path} cannot be used: {error}.") from error
    return len(set(ids)) < len(FOREIGN_PROBE) / 4 or len(ids) > len(FOREIGN_PROBE) * 1.5


def _optional_json(path: Path) -> dict[str, Any]:
    """An object from a file; an empty one if there is no file."""
    return read_json(path) if path.exists() else {}
