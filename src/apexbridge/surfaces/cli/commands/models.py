"""`apex models …`: embedding models beside the bundled ones, and which of them search uses."""

import asyncio
from typing import Annotated, Any

import typer

from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.retrieval.embedders.embedder import DEFAULT_MODELS
from apexbridge.retrieval.embedders.model_choice import read_choice
from apexbridge.retrieval.embedders.model_sources import KNOWN_MODELS
from apexbridge.retrieval.embedders.model_store import InstalledModel, ModelStore
from apexbridge.settings import load_settings
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.console import plural
from apexbridge.surfaces.cli.session import DataDir, Session, command

MB = 1024 * 1024
PATH = "/api/embedding-models"
POLL_SECONDS = 0.2
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
Shared = Annotated[bool, typer.Option("--shared", help="For every data directory of this installation.")]
ModelName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the model.")]
ModelNames = Annotated[
    list[str] | None, typer.Argument(metavar="NAME…", help="The names of the models.", show_default=False)
]
Default = Annotated[bool, typer.Option("--default", help="Use the default models, as far as they are installed.")]


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
    replace: Annotated[bool, typer.Option("--replace", help="Replace a model with the same name.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Add an embedding model or a reranker in ONNX format: a known one, a folder, or a model of the hub."""
    say = session.console.say if not session.json else (lambda text: None)
    model = _store(data_dir).add(source, name=name, shared=shared, replace=replace, say=say)
    added = model.card.name
    choice = "--default" if added in DEFAULT_MODELS else f"{DEFAULT_MODELS[0]} {added}"
    what, use = f"{model.card.dimensions} dimensions, ", f"apex models use {choice}"
    if model.card.kind == "reranker":
        what, use = "a reranker, ", f"set APEX_RERANKER={added} and restart"
    session.report(_view(model), f"{added} is added: {what}{model.size // MB} MB. Use it: {use}")


@command(app, "list", "ls")
def list_models(session: Session) -> None:
    """List the embedding models, and which of them search uses."""
    found = session.ask("GET", PATH, creates=True)
    rows = [
        (
            model["name"],
            model["kind"],
            model["dimensions"],
            f"{model['bytes'] // MB} MB" if model["bytes"] is not None else "bundled",
            model["inUse"],
            model["source"],
        )
        for model in found["models"]
    ]
    session.table(found, ("NAME", "KIND", "DIMENSIONS", "SIZE", "IN USE", "SOURCE"), rows, empty="")
    if change := found["change"]:
        session.console.say(
            f"{change['done']} of {change['total']} skills are embedded for {' + '.join(change['models'])}"
        )
    session.console.warn([*found["problems"], *([change["problem"]] if change and change["problem"] else [])])


@command(app, "use")
def use(session: Session, names: ModelNames = None, default: Default = False) -> None:
    """Choose the models that search uses, and embed all skills again. Until then, search uses the old models."""
    if bool(names) == default:
        raise InvalidInputError("Name the models, or choose the default ones: apex models use --default")

    async def work(api: Api) -> dict[str, Any]:
        state: dict[str, Any] = await api.ask("PUT", PATH, json={"models": names})
        with session.console.progress_bar("embedding skills") as progress:
            while (change := state["change"]) is not None:
                if change["problem"]:
                    raise ServerError(
                        f"{change['problem']} The choice is stored, and search goes on with "
                        f"{' + '.join(state['inUse'])}. Choose others: apex models use --default",
                        code="NOT_READY",
                    )
                progress(change["done"], change["total"])
                await asyncio.sleep(POLL_SECONDS)
                state = await api.ask("GET", PATH)
        return state

    state = session.call(work)
    dropped = state["droppedRequests"]
    lost = f". {plural(dropped, 'past request')} had to be dropped: no text of them is recorded" if dropped else ""
    session.report(state, f"Search uses {' + '.join(state['inUse'])}{lost}")


@command(app, "remove", "rm", connects=False)
def remove(session: Session, name: ModelName, data_dir: DataDir = None) -> None:
    """Remove an added model."""
    settings = load_settings(data_dir=data_dir)
    if name in read_choice(settings.data_dir):
        raise InvalidInputError(f"{name} is chosen for search. Choose others first: apex models use --default")
    if name == settings.reranker:
        raise InvalidInputError(f"APEX_RERANKER names {name}. Remove that setting first.")
    ModelStore(settings.data_dir).remove(name)
    session.report({"name": name}, f"{name} is removed")


def _store(data_dir: str | None) -> ModelStore:
    return ModelStore(load_settings(data_dir=data_dir).data_dir)


def _view(model: InstalledModel) -> dict[str, Any]:
    return {**model.card.model_dump(mode="json"), "folder": str(model.folder), "bytes": model.size}
