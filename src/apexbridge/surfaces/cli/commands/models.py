"""`apex models …`: embedding models beside the bundled ones."""

from typing import Annotated, Any

import typer

from apexbridge.retrieval.embedders.embedder import DEFAULT_MODELS
from apexbridge.retrieval.embedders.model_sources import KNOWN_MODELS
from apexbridge.retrieval.embedders.model_store import InstalledModel, ModelStore
from apexbridge.settings import load_settings
from apexbridge.surfaces.cli.session import DataDir, Session, command

MB = 1024 * 1024
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
Shared = Annotated[bool, typer.Option("--shared", help="For every data directory of this installation.")]
ModelName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the model.")]


@command(app, "add", connects=False)
def add(
    session: Session,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help=f"{', '.join(KNOWN_MODELS)}; a folder; or owner/name[@revision] of the hub."
        ),
    ],
    name: Annotated[str | None, typer.Option("--name", help="Its name here.", show_default="that of SOURCE")] = None,
    shared: Shared = False,
    data_dir: DataDir = None,
) -> None:
    """Add an embedding model in ONNX format: gte-small, a folder, or a model of the hub."""
    say = session.console.say if not session.json else (lambda text: None)
    model = _store(data_dir).add(source, name=name, shared=shared, say=say)
    added = model.card.name
    chosen = "" if added in DEFAULT_MODELS else f"APEX_EMBEDDING_MODELS={DEFAULT_MODELS[0]},{added} and "
    session.report(
        _view(model),
        f"{added} is added: {model.card.dimensions} dimensions, {_size(model) // MB} MB. "
        f"It is used after {chosen}a restart; every skill is embedded again then.",
    )


@command(app, "list", "ls", connects=False)
def list_models(session: Session, data_dir: DataDir = None) -> None:
    """List the added models."""
    models, problems = _store(data_dir).models()
    rows = [(model.card.name, model.card.dimensions, f"{_size(model) // MB} MB", model.card.source) for model in models]
    session.table(
        [_view(model) for model in models],
        ("NAME", "DIMENSIONS", "SIZE", "SOURCE"),
        rows,
        empty="No model is added. The bundled ones are used.",
    )
    session.console.warn(list(problems.values()))


@command(app, "remove", "rm", connects=False)
def remove(session: Session, name: ModelName, data_dir: DataDir = None) -> None:
    """Remove an added model."""
    _store(data_dir).remove(name)
    session.report({"name": name}, f"{name} is removed")


def _store(data_dir: str | None) -> ModelStore:
    return ModelStore(load_settings(data_dir=data_dir).data_dir)


def _view(model: InstalledModel) -> dict[str, Any]:
    return {**model.card.model_dump(mode="json"), "folder": str(model.folder), "bytes": _size(model)}


def _size(model: InstalledModel) -> int:
    return sum(path.stat().st_size for path in model.folder.rglob("*") if path.is_file())
