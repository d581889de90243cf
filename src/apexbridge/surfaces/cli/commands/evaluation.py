"""`apex eval …`: measures the quality of search."""

from pathlib import Path
from typing import Annotated, Any

import typer

from apexbridge.surfaces.cli.options import Json, show

app = typer.Typer(help="Measure search on files of your own.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Measure search on files of your own."""


@app.command("retrieval")
def retrieval(
    corpus: Annotated[
        list[Path],
        typer.Option("--corpus", help='Lines of {"id", "name", "description"}; more than one file is one corpus.'),
    ],
    queries: Annotated[Path, typer.Option("--queries", help='Lines of {"qid", "query", "gold": [ids]}.')],
    run_out: Annotated[
        Path | None, typer.Option("--run-out", help="Where to write the ranked ids of each query.")
    ] = None,
    usage_memory: Annotated[
        bool, typer.Option("--usage-memory", help="Also ask each half of the queries after learning the other.")
    ] = False,
    json: Json = False,
) -> None:
    """Recall, MRR and nDCG of search on a corpus; thresholds are off."""
    from apexbridge.errors import ServerError
    from apexbridge.retrieval.embedders.embedder import choose_embedder
    from apexbridge.retrieval.embedders.model import EmbeddingError
    from apexbridge.retrieval.evaluation import evaluate
    from apexbridge.settings import load_settings
    from apexbridge.surfaces.cli.progress import progress_bar

    embedder = choose_embedder(load_settings().retrieval)
    with progress_bar("embedding the corpus") as progress:
        try:
            found = evaluate(
                embedder, corpus, queries, run_out=run_out, usage_memory=usage_memory, progress=progress
            ).model_dump(exclude_none=True)
        except EmbeddingError as error:
            raise ServerError(str(error), code="LANCE_SEARCH_ERROR") from error
    show(found, json=json, people=lambda: _print(found))


def _print(found: dict[str, Any]) -> None:
    from apexbridge.surfaces.cli.console import facts, say, table

    facts({"corpus": f"{found['corpus']} skills", "model": found["embedder"]})
    sets = {
        "all": found["metrics"],
        "all, the other half learnt": found.get("withUsageMemory"),
    }
    asked = {label: metrics for label, metrics in sets.items() if metrics}
    names = [name for name in found["metrics"] if name != "requests"]
    rows = [
        [label, metrics["requests"], *(f"{metrics[name]:.4f}" for name in names)] for label, metrics in asked.items()
    ]
    table(("QUERIES", "COUNT", *names), rows, empty="")
    if found["confusions"]:
        say("mixed up most often:")
        table(
            ("TIMES", "MISSED", "FOUND INSTEAD"),
            [(pair["times"], pair["missed"], pair["taken"]) for pair in found["confusions"]],
            empty="",
        )
