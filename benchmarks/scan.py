"""The scan over a collection of skills: how many harmless ones raise an alarm, by severity and by rule.

The collection is a folder of skills, or a `.jsonl.gz` whose lines have `id` and `skill_md` (base64). Findings above low
can be written to a file as JSON lines, to be judged by hand.
"""

import gzip
import json
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from apexbridge.skills.models import ContentScan
from apexbridge.skills.package.entry_names import is_skill_file
from apexbridge.skills.package.scan.scanner import SourceFile, scan, scan_skill_folder

SEVERITIES = ("high", "medium", "low")


def run(path: Path, findings: Path | None = None) -> None:
    """Scan every skill of the collection, and print the rates."""
    by_severity: Counter[str] = Counter()
    by_rule: Counter[tuple[str, str]] = Counter()
    count, slowest, begun = 0, 0.0, time.process_time()
    written = []
    for name, scanned, seconds in _scans(path):
        count += 1
        slowest = max(slowest, seconds)
        worst = {one.severity for one in scanned.findings}
        by_severity.update(severity for severity in SEVERITIES if severity in worst)
        by_rule.update({(one.severity, one.rule) for one in scanned.findings})
        written += [{"skill": name, **one.model_dump(mode="json")} for one in scanned.findings if one.severity != "low"]
    seconds = time.process_time() - begun
    if findings:
        findings.write_text("".join(f"{json.dumps(one)}\n" for one in written), "utf-8")
    print(f"{count} skills, {1000 * seconds / max(count, 1):.1f} ms each, {1000 * slowest:.0f} ms at most")
    for severity in SEVERITIES:
        print(f"{severity:8} {by_severity[severity]:5} skills, {100 * by_severity[severity] / max(count, 1):.2f} %")
    for (severity, rule), number in sorted(by_rule.items(), key=lambda item: (SEVERITIES.index(item[0][0]), -item[1])):
        print(f"  {severity:8} {rule:32} {number:5}  {100 * number / max(count, 1):.2f} %")


def _scans(path: Path) -> Iterator[tuple[str, ContentScan, float]]:
    if path.is_dir():
        for folder in sorted({found.parent for found in path.rglob("*") if is_skill_file(found.name)}):
            begun = time.process_time()
            yield str(folder), scan_skill_folder(folder), time.process_time() - begun
        return
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            data = b64decode(record["skill_md"])
            file = SourceFile(path="SKILL.md", size=len(data), read=lambda limit, data=data: data[:limit])  # type: ignore[misc]
            begun = time.process_time()
            yield record["id"], scan([file]), time.process_time() - begun
