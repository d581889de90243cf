"""`apex eval …`: measures the quality of search."""

from pathlib import Path
from typing import Annotated

import typer

from apexbridge.errors import ServerError
from apexbridge.retrieval.embedders.embedder import choose_embedder
from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.evaluation import evaluate
from apexbridge.settings import load_settings
from apexbridge.surfaces.cli.session import Session, command

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@command(app, "retrieval", connects=False)
def retrieval(
    session: Session,
    corpus: Annotated[
        list[Path],
        typer.Option("--corpus", help='Lines of {"id", "name", "description"}; several files make one corpus.'),
    ],
    queries: Annotated[Path, typer.Option("--queries", help='Lines of {"qid", "query", "gold": [ids]}.')],
    run_out: Annotated[
        Path | None, typer.Option("--run-out", help="Where to write the ranked ids of each query.")
    ] = None,
    usage_memory: Annotated[
        bool, typer.Option("--usage-memory", help="Also run each half of the queries after learning the other half.")
    ] = False,
) -> None:
    """Measure recall, MRR and nDCG of search on a corpus; thresholds are off."""
    console = session.console
    settings = load_settings()
    embedder = choose_embedder(settings.retrieval, settings.data_dir)
    with console.progress_bar("embedding the corpus") as progress:
        try:
            found = evaluate(
                embedder, corpus, queries, run_out=run_out, usage_memory=usage_memory, progress=progress
            ).model_dump(exclude_none=True)
        except EmbeddingError as error:
            raise ServerError(str(error), code="LANCE_SEARCH_ERROR") from error
    if session.show_json(found):
        return
    console.facts({"corpus": f"{found['corpus']} skills", "model": found["embedder"]})
    sets = {"all": found["metrics"], "all, the other half learnt": found.get("withUsageMemory")}
    names = [name for name in found["metrics"] if name != "requests"]
    rows = [
        [label, metrics["requests"], *(f"{metrics[name]:.4f}" for name in names)]
        for label, metrics in sets.items()
        if metrics
    ]
    console.table(("QUERIES", "COUNT", *names), rows)
    if found["confusions"]:
        console.say("mixed up most often:")
        confusions = [(pair["times"], pair["missed"], pair["taken"]) for pair in found["confusions"]]
        console.table(("TIMES", "MISSED", "FOUND INSTEAD"), confusions)
