"""`apex models …`: embedding models beside the bundled ones, and which of them search uses."""

import asyncio
from typing import Annotated, Any

import typer

from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.retrieval.embedders.bundled import ENGLISH_MODEL, find_english_model
from apexbridge.retrieval.embedders.embedder import DEFAULT_MODELS, installed_models
from apexbridge.retrieval.embedders.model_card import Pooling
from apexbridge.retrieval.embedders.model_choice import read_choice
from apexbridge.retrieval.embedders.model_sources import KNOWN_MODELS
from apexbridge.retrieval.embedders.model_store import InstalledModel, ModelStore
from apexbridge.settings import Settings, load_settings
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.console import plural
from apexbridge.surfaces.cli.session import DataDir, Session, command

MB = 1024 * 1024
PATH = "/api/embedding-models"
POLL_SECONDS = 0.5
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
    pooling: Annotated[
        Pooling | None,
        typer.Option("--pooling", help="How vectors of tokens become one.", show_default="as its files say"),
    ] = None,
    request_prefix: Annotated[
        str | None,
        typer.Option("--request-prefix", help="What it reads before a request.", show_default="as its files say"),
    ] = None,
    document_prefix: Annotated[
        str | None,
        typer.Option("--document-prefix", help="What it reads before a skill.", show_default="as its files say"),
    ] = None,
    english_only: Annotated[
        bool | None,
        typer.Option(
            "--english-only/--all-languages", help="Which requests it reads.", show_default="as its tokenizer says"
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Add an embedding model or a reranker in ONNX format: a known one, a folder, or a model of the hub."""
    say = session.console.say if not session.json else (lambda text: None)
    settings = load_settings(data_dir=data_dir)
    asked = {
        "pooling": pooling,
        "request_prefix": request_prefix,
        "document_prefix": document_prefix,
        "english_only": english_only,
    }
    changes = {field: value for field, value in asked.items() if value is not None}
    model = ModelStore(settings.data_dir).add(
        source, name=name, shared=shared, replace=replace, changes=changes, say=say
    )
    session.console.warn(model.guesses)
    use = f"apex models use {_choice_with(model.card.name, settings)}"
    if model.card.kind == "reranker":
        use = f"set APEX_RERANKER={model.card.name} and restart"
    elif settings.retrieval.models:
        use = "add it to APEX_EMBEDDING_MODELS and restart"
    session.report(_view(model), f"{model.card.name} is added: {_about(model)}. Use it: {use}")


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
def remove(session: Session, name: ModelName, shared: Shared = False, data_dir: DataDir = None) -> None:
    """Remove an added model that is not in use."""
    settings = load_settings(data_dir=data_dir)
    store = ModelStore(settings.data_dir)
    is_last = len(store.folders_of(name)) == 1 and not (name == ENGLISH_MODEL.name and find_english_model())
    if is_last:
        _check_unused(name, settings)
    store.remove(name, shared=shared)
    session.report({"name": name}, f"{name} is removed")


def _check_unused(name: str, settings: Settings) -> None:
    if name == settings.reranker:
        raise InvalidInputError(f"APEX_RERANKER names {name}. Remove that setting first.")
    if name in settings.retrieval.models:
        raise InvalidInputError(f"APEX_EMBEDDING_MODELS names {name}. Change that setting first.")
    if settings.retrieval.models or settings.retrieval.embedding == "openai":
        return
    if name in (chosen := read_choice(settings.data_dir)):
        raise InvalidInputError(f"{name} is chosen for search. Choose others first: apex models use --default")
    if not chosen and name in DEFAULT_MODELS:
        raise InvalidInputError(
            f"{name} is one of the default models of search. Choose others first: "
            f"apex models use {' '.join(other for other in DEFAULT_MODELS if other != name)}"
        )


def _choice_with(name: str, settings: Settings) -> str:
    """The arguments of `apex models use` for the models that are chosen now and a new one."""
    if name in DEFAULT_MODELS:
        return "--default"
    installed = installed_models(settings.data_dir)
    chosen = [other for other in read_choice(settings.data_dir) or DEFAULT_MODELS if other in installed]
    return " ".join([*(other for other in chosen if other != name), name])


def _about(model: InstalledModel) -> str:
    card, size = model.card, f"{model.size // MB} MB"
    languages = "English only" if card.english_only else "all languages"
    if card.kind == "reranker":
        return f"a reranker, {languages}, {size}"
    pooling = "pooled by the model" if card.output else f"{card.pooling} pooling"
    prefixes = [
        f"{prefix!r} before {what}"
        for prefix, what in ((card.request_prefix, "requests"), (card.document_prefix, "skills"))
        if prefix
    ]
    return ", ".join([f"{card.dimensions} dimensions", pooling, *prefixes, languages, size])


def _view(model: InstalledModel) -> dict[str, Any]:
    return {
        **model.card.model_dump(mode="json"),
        "folder": str(model.folder),
        "bytes": model.size,
        "guesses": list(model.guesses),
    }
