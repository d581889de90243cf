"""Real SKILL.md files: how many each profile accepts, how exact edits are, how many can be repaired.

Takes a folder of skills, or a `.jsonl.gz` with one object per line: `id`, `folder`, `file`, `skill_md` (base64).
"""

import base64
import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from apexbridge.skills import Profile
from apexbridge.skills.package.entry_names import is_skill_file
from apexbridge.skills.package.frontmatter import parse_leniently, replace_description
from apexbridge.skills.package.repair import repair
from apexbridge.skills.package.skill_md import read_skill_markdown
from apexbridge.skills.package.yaml_block import FrontmatterError

DESCRIPTIONS = ("A new description.", '含有: "引号" # 和\n换行', "\u2028 odd \x7f ones \U0001f642")
REASONS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One file and its folder."""

    id: str
    folder: str
    data: bytes


def read_samples(path: Path) -> Iterator[Sample]:
    """The files of a folder or of a collection."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if is_skill_file(file.name) and file.is_file():
                yield Sample(file.relative_to(path).as_posix(), file.resolve().parent.name, file.read_bytes())
        return
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Sample(row["id"], row["folder"], base64.b64decode(row["skill_md"]))


def edits_only_the_description(sample: Sample, name: str) -> bool:
    """Whether edits change only the bytes of the description."""
    text = sample.data.decode("utf-8", "surrogateescape")
    before = parse_leniently(text)
    field = before.fields.get("description")
    for description in DESCRIPTIONS:
        try:
            edited = replace_description(text, description, name=name)
        except FrontmatterError:
            return False
        if field is None:
            same = edited.endswith(text[before.block_start or 0 :].removeprefix("\ufeff"))
        else:
            same = edited.startswith(text[: field.start]) and edited.endswith(text[field.end - len(field.tail) :])
        if not same or parse_leniently(edited).value("description") != description:
            return False
    return True


def run(path: Path) -> dict[str, object]:
    """Measure everything and return the figures."""
    samples = list(read_samples(path))
    report: dict[str, object] = {"files": len(samples)}
    print(f"{len(samples)} SKILL.md files")
    for profile in get_args(Profile):
        begun, refused, reasons = time.perf_counter(), 0, Counter[str]()
        for sample in samples:
            reading = read_skill_markdown(sample.data, folder=sample.folder, profile=profile)
            if reading.metadata is None:
                refused += 1
                reasons[reading.errors[0].message.split(":")[0][:60]] += 1
        share = 100 * (len(samples) - refused) / max(1, len(samples))
        took = (time.perf_counter() - begun) * 1000 / max(1, len(samples))
        report[profile] = round(share, 2)
        print(f"{profile:8} accepts {share:6.2f} %  ({took:.2f} ms a file)")
        for reason, count in reasons.most_common(REASONS_SHOWN):
            print(f"           {count:5} x {reason}")
    accepted, exact, repairable = 0, 0, 0
    for sample in samples:
        reading = read_skill_markdown(sample.data, folder=sample.folder, profile="lenient")
        if reading.metadata is not None:
            accepted += 1
            exact += edits_only_the_description(sample, reading.metadata.name)
        repaired = repair(sample.data, sample.folder)
        repairable += read_skill_markdown(repaired, folder=sample.folder, profile="seed").metadata is not None
    report |= {"accepted": accepted, "exact_edits": exact, "repairable": repairable}
    print(f"edits    {exact} of {accepted} accepted files: only the description's bytes change")
    print(f"doctor   {repairable} of {len(samples)} pass the seed profile after a repair")
    return report
