"""A model of a few bytes: the vector of a word is a row of a table."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tokenizers
from onnx import TensorProto, helper, numpy_helper

WORDS = ["[UNK]", "[CLS]", "[SEP]", "merge", "pdf", "files", "weather", "query", ":"]
DIMENSIONS = 8


def table(seed: int = 7) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=(len(WORDS), DIMENSIONS)).astype(np.float32)


def write_model(
    folder: Path,
    *,
    pooling: str = "mean",
    prompts: dict[str, str] | None = None,
    seed: int = 7,
    weights: np.ndarray[Any, np.dtype[np.float32]] | None = None,
    **config: Any,
) -> Path:
    """Write the files that the hub has for a model. Models with another `seed` have other vectors."""
    folder.mkdir(parents=True)
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"]) for name in ("input_ids",)]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["n", "t", DIMENSIONS])
    rows = table(seed) if weights is None else weights
    gather = helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
    graph = helper.make_graph([gather], "tiny", inputs, [output], [numpy_helper.from_array(rows, "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, folder / "model.onnx")
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"hidden_size": DIMENSIONS, **config}))
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_lasttoken": pooling == "last"}
    (folder / "1_Pooling/config.json").write_text(json.dumps(modes))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return folder
