"""What an ONNX file says about itself: its outputs, and the files that have the rest of its weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from apexbridge.retrieval.embedders.model import EmbeddingError

MAX_BYTES = 2**31
"""Of an ONNX file itself; larger ones have their weights in other files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFile:
    outputs: dict[str, int | None]
    """By name, the length of a vector; None if the file leaves it open."""
    data_files: tuple[str, ...]
    """Paths from the folder of the file, sorted."""


def read_onnx_file(path: Path) -> OnnxFile:
    """Read the graph without the weights of other files. Raises EmbeddingError."""
    try:
        import onnx
    except ImportError as error:
        raise EmbeddingError("To add models: pip install 'apexbridge[models]'") from error
    try:
        if path.stat().st_size >= MAX_BYTES:
            raise ValueError
        model = onnx.load(path, load_external_data=False)
        data_files = {_location(tensor) for tensor in _tensors(model) if tensor.data_location == tensor.EXTERNAL}
        outputs = {
            output.name: (output.type.tensor_type.shape.dim[-1].dim_value if _has_shape(output) else 0) or None
            for output in model.graph.output
        }
    except Exception as error:  # of protobuf
        if isinstance(error, EmbeddingError):
            raise
        raise EmbeddingError(f"{path} is not an ONNX file, or it is incomplete: download it again.") from error
    if not outputs:
        raise EmbeddingError(f"{path} is not an ONNX file, or it is incomplete: download it again.")
    return OnnxFile(outputs=outputs, data_files=tuple(sorted(data_files)))


def is_beneath(name: str) -> bool:
    """Whether a path leads to a file below the folder that it starts from."""
    return bool(name) and "\0" not in name and not PurePosixPath(name).is_absolute() and ".." not in Path(name).parts


def _has_shape(output: Any) -> bool:
    return len(output.type.tensor_type.shape.dim) > 0


def _location(tensor: Any) -> str:
    name = next((str(entry.value) for entry in tensor.external_data if entry.key == "location"), "")
    if not is_beneath(name):
        raise EmbeddingError(f"The ONNX file has weights in {name or 'no file'}, outside of its folder.")
    return str(PurePosixPath(name))


def _tensors(model: Any) -> Iterator[Any]:
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def _of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _of_graph(graph)
