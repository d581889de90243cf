"""A model of a few bytes: the vector of a word is a row of a table. It has the files of a published layout."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from apexbridge.retrieval.embedders.model_card import ModelCard
from apexbridge.retrieval.embedders.model_files import FOREIGN_PROBE, read_model

WORDS = ["[UNK]", "[CLS]", "[SEP]", "merge", "pdf", "files", "weather", "query", ":", *dict.fromkeys(FOREIGN_PROBE)]
DIMENSIONS = 8
HEADS, HEAD_SIZE = 2, 4
"""Of the past of a decoder."""
Table = np.ndarray[Any, np.dtype[np.float32]]


def table(seed: int = 7) -> Table:
    return np.random.default_rng(seed).normal(size=(len(WORDS), DIMENSIONS)).astype(np.float32)


def write_model(
    folder: Path,
    *,
    pooling: str | None = "mean",
    prompts: dict[str, Any] | None = None,
    modules: Sequence[str] = (),
    seed: int = 7,
    weights: Table | None = None,
    file: str = "model.onnx",
    **config: Any,
) -> Path:
    """Write the files that the hub has for a model. Models with another `seed` have other vectors."""
    folder.mkdir(parents=True)
    write_graph(folder / file, weights=table(seed) if weights is None else weights)
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"hidden_size": DIMENSIONS, **config}))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        modes = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in ("cls_token", "mean_tokens", "lasttoken")}
        (folder / "1_Pooling/config.json").write_text(json.dumps(modes))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    if modules:
        listed = [
            {
                "idx": number,
                "path": f"{number}_{kind}" if number else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def write_tokenizer(folder: Path, *, words: Sequence[str] = WORDS, special: str = "[CLS] $A [SEP]") -> None:
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    numbers = [(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]") if word in special]
    if numbers:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=special, special_tokens=numbers)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_graph(
    path: Path,
    *,
    weights: Table,
    layout: Literal["encoder", "bge-m3", "decoder", "pooled"] = "encoder",
    inputs: Sequence[str] = (),
    data_file: str = "model.onnx_data",
) -> None:
    """Write an ONNX file.

    - `bge-m3`: its weights are in other files, those of an initializer and those of a constant.
    - `decoder`: it has positions and a past, as the models of onnx-community, and adds both to its output. Each token
      sees the tokens before it: its vector is the sum of theirs.
    - `pooled`: it has the mean of the tokens as a further output.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    integers = ["input_ids", *(["attention_mask", "position_ids"] if layout == "decoder" else []), *inputs]
    taken = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"]) for name in integers]
    outputs = [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["n", "t", weights.shape[1]])]
    initial = [numpy_helper.from_array(weights, "table")]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"])]
    last = "rows"
    if layout == "bge-m3":
        constant = numpy_helper.from_array(np.zeros(weights.shape[1], np.float32), "zeros")
        nodes.append(helper.make_node("Constant", [], ["zeros"], value=constant))
        nodes.append(helper.make_node("Add", [last, "zeros"], ["summed"]))
        last = "summed"
        for tensor, location in ((initial[0], data_file), (nodes[1].attribute[0].t, "Constant_1_attr__value")):
            if location:
                (path.parent / location).write_bytes(tensor.raw_data)
            external_data_helper.set_external_data(tensor, location=location)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
    if layout == "decoder":
        for part in ("key", "value"):
            shape: list[str | int | None] = ["n", HEADS, "past", HEAD_SIZE]
            taken.append(helper.make_tensor_value_info(f"past_key_values.0.{part}", TensorProto.FLOAT, shape))
        initial += [
            numpy_helper.from_array(np.array(1), "one"),
            numpy_helper.from_array(np.array([0, 1, 2, 3]), "every"),
            numpy_helper.from_array(np.array([2]), "last axis"),
        ]
        nodes += [
            helper.make_node("CumSum", ["rows", "one"], ["before"]),
            helper.make_node("Cast", ["position_ids"], ["positions"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["positions", "last axis"], ["each position"]),
            helper.make_node("Add", ["before", "each position"], ["placed"]),
            helper.make_node("Concat", ["past_key_values.0.key", "past_key_values.0.value"], ["past"], axis=2),
            helper.make_node("ReduceSum", ["past", "every"], ["sum of the past"], keepdims=0),
            helper.make_node("Add", ["placed", "sum of the past"], ["summed"]),
        ]
        last = "summed"
    nodes.append(helper.make_node("Identity", [last], ["last_hidden_state"]))
    if layout == "pooled":
        outputs.append(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["n", weights.shape[1]]))
        nodes.append(helper.make_node("ReduceMax", [last], ["sentence_embedding"], axes=[1], keepdims=0))
    graph = helper.make_graph(nodes, "tiny", taken, outputs, initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path.write_bytes(model.SerializeToString())


def card_of(folder: Path) -> ModelCard:
    """The card of a model's folder, derived from its files unless it has one."""
    return read_model(folder, folder.name).card
