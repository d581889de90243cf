"""The details of a skill, from its catalog row and its folder."""

from apexbridge.skills.models import DefaultMode, SkillDetail, SkillFile
from apexbridge.skills.package.entry_names import is_text
from apexbridge.skills.package.entrypoint import runnable_scripts
from apexbridge.skills.package.fingerprint import look
from apexbridge.skills.package.frontmatter import parse_leniently
from apexbridge.skills.store.catalog import Row
from apexbridge.skills.store.roots import FoundFolder


def describe(row: Row, found: FoundFolder, default_mode: DefaultMode, granted: list[str]) -> SkillDetail:
    """Combine the row with the instructions and files that are on disk now.

    Raises:
        FileNotFoundError: the folder has been removed.
    """
    files = look(found.path).files
    markdown = (found.path / row.filename).read_bytes().decode("utf-8", "replace")
    metadata = row.metadata
    return SkillDetail(
        **row.to_summary(default_mode, found.root.label).model_dump(by_alias=False),
        entry=row.entry,
        content=parse_leniently(markdown).body,
        summary=row.summary,
        filename=row.filename,
        source_path=f"{row.folder}/{row.filename}",
        files=[SkillFile(path=file.path, size=file.size) for file in files if is_text(file.path)],
        scripts=runnable_scripts(file.path for file in files),
        content_hash=row.content_hash,
        size=row.size,
        warnings=row.warnings,
        parameters=row.parameters,
        script_parameters={path: arguments.schema() for path, arguments in row.arguments.items()},
        permissions=list(metadata.permissions),
        grants=granted,
        allowed_tools=list(metadata.allowed_tools),
        timeout=metadata.timeout_ms,
        confirm=metadata.confirm,
        license=metadata.license,
        compatibility=metadata.compatibility,
        disable_model_invocation=metadata.disable_model_invocation,
        metadata=metadata.metadata,
        read_only=not found.root.is_writable(found.path),
    )
