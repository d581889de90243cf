"""`apex eval …`: measures the quality of search."""

from pathlib import Path
from typing import Annotated, Any

import typer

from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.retrieval.body_evaluation import SkillText, evaluate_bodies
from apexbridge.retrieval.embedders.embedder import choose_embedder
from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.evaluation import check_output, evaluate, write_lines
from apexbridge.retrieval.reranking import choose_reranker
from apexbridge.settings import load_settings
from apexbridge.skills import SKILL_FILE
from apexbridge.skills.package.skill_md import read_skill_markdown
from apexbridge.surfaces.cli.console import Console
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
    """Measure recall, MRR and nDCG of search on a corpus, and what is shown at the threshold."""
    console = session.console
    settings = load_settings()
    embedder = choose_embedder(settings.retrieval, settings.data_dir)
    with console.progress_bar("embedding the corpus") as progress:
        try:
            found = evaluate(
                embedder,
                corpus,
                queries,
                run_out=run_out,
                usage_memory=usage_memory,
                threshold=settings.retrieval.threshold,
                reranker=choose_reranker(settings.retrieval, settings.data_dir),
                progress=progress,
            ).model_dump(exclude_none=True)
        except EmbeddingError as error:
            raise ServerError(str(error), code="LANCE_SEARCH_ERROR") from error
    if session.show_json(found):
        return
    rows = {
        "all": found["metrics"],
        "all, the other half learnt": found.get("withUsageMemory"),
        "words alone": found["wordsAlone"],
    }
    _show(console, found, rows)
    console.warn(found["warnings"])
    shown = found["atThreshold"]
    console.line(
        f"at the threshold of {shown['threshold']:g}: {shown['R@5']:.1%} of the right skills are shown among the first "
        f"five; {shown['empty']:.1%} of the answers are empty"
    )
    if found["confusions"]:
        console.say("mixed up most often:")
        confusions = [(pair["times"], pair["missed"], pair["taken"]) for pair in found["confusions"]]
        console.table(("TIMES", "MISSED", "FOUND INSTEAD"), confusions)


@command(app, "body", connects=False)
def body(
    session: Session,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with skills, at any depth.")],
    queries_out: Annotated[
        Path | None, typer.Option("--queries-out", help="Where to write the requests that were made.")
    ] = None,
) -> None:
    """Measure what the bodies of skills add to search, with requests from held-back lines of the bodies."""
    console = session.console
    skills = _skills_in(folder)
    if queries_out is not None:
        check_output(queries_out)
    settings = load_settings()
    embedder = choose_embedder(settings.retrieval, settings.data_dir)
    with console.progress_bar("embedding the skills") as progress:
        try:
            found, held = evaluate_bodies(embedder, skills, progress)
        except EmbeddingError as error:
            raise ServerError(str(error), code="LANCE_SEARCH_ERROR") from error
    if queries_out is not None:
        write_lines(queries_out, [{"query": one.request, "gold": [one.id]} for one in held])
    view = found.model_dump()
    if session.show_json(view):
        return
    _show(console, view, {"names and descriptions": view["withoutBody"], "with bodies": view["withBody"]})


def _show(console: Console, found: dict[str, Any], measured: dict[str, dict[str, Any] | None]) -> None:
    """What was evaluated, and a row of metrics for each way of searching."""
    console.facts({"corpus": f"{found['corpus']} skills", "model": found["embedder"]})
    rows = {label: metrics for label, metrics in measured.items() if metrics}
    names = [name for name in next(iter(rows.values())) if name != "requests"]
    console.table(
        ("QUERIES", "COUNT", *names),
        [[label, metrics["requests"], *(f"{metrics[name]:.4f}" for name in names)] for label, metrics in rows.items()],
    )


def _skills_in(folder: Path) -> list[SkillText]:
    """The skills below a folder. Files that cannot be read as a skill, and copies of a description, are left out."""
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is not a folder." if folder.exists() else f"There is no folder {folder}.")
    skills: dict[str, SkillText] = {}
    for path in sorted(folder.rglob(SKILL_FILE)):
        try:
            content = path.read_bytes()
        except OSError:
            continue
        reading = read_skill_markdown(content, folder=path.parent.name, profile="lenient")
        if reading.metadata is not None:
            skill = SkillText(
                id=path.parent.relative_to(folder).as_posix(),
                name=reading.metadata.name,
                description=reading.metadata.description,
                tags=reading.metadata.tags,
                body=reading.body,
            )
            skills.setdefault(skill.description.strip().casefold(), skill)
    if not skills:
        raise InvalidInputError(f"{folder.name} has no skills: no folder below it has a readable {SKILL_FILE}.")
    return list(skills.values())
