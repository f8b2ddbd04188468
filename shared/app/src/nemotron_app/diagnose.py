"""`nemotron diagnose`: why a job failed, and what to do about it.

nemotron diagnose last                  the newest job submitted from here; or a job id, or the name of its folder
nemotron diagnose slurm-4711.out        one log file, from any launcher
nemotron diagnose 4711-logs             a folder of logs, such as one for each node
"""

from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import click

from nemotron_app.jobs import backend_for, find, state_of
from nemotron_app.store_options import Look, store_options
from nemotron_cluster.backends import OVER, Backend
from nemotron_cluster.diagnose.causes import Diagnosis, Facts, Match, diagnose
from nemotron_cluster.diagnose.logs import Logs, read_logs, require_any, require_log, text_of
from nemotron_cluster.job import EXIT_CODE, LOG, RECORD, Record, read_record
from nemotron_cluster.slurm import scheduler
from nemotron_shared.system.console import finding_lines
from nemotron_shared.system.errors import NotFound, UserError, printable
from nemotron_shared.system.redaction import redact

WHY = ("cause", "unknown", "end")
MORE = 4
"""Number of further findings to show."""


@runtime_checkable
class HasFacts(Protocol):
    """A backend whose scheduler knows more about a job than its state."""

    def facts(self, record: Record) -> scheduler.Facts | None:
        """The scheduler's facts about a job; None if it knows nothing about it."""
        ...


@click.command("diagnose", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("wanted", metavar="LOGDIR|LOGFILE|JOB")
@store_options
def command(look: Look, wanted: str) -> int:
    """See the module docstring."""
    path = Path(wanted).expanduser()
    record = read_record(path / RECORD) if path.is_dir() else None
    if record is None and path.exists():
        logs = read_logs(path)
        title, found = str(path), diagnose(logs, _exit_code(path))
        if found.facts is None:
            require_any(path, logs)
        if path.is_file() and not any(one.rule.level in WHY for one in found.findings):
            require_log(path, logs.texts[0])
    else:
        try:
            record = record or find(look, wanted)
        except NotFound as error:
            raise NotFound(f"{wanted}: no file or folder; and {error.message}", error.remedy) from error
        title = f"job {record.id} ({record.name})" if record.id else f"{record.name}, which was not submitted"
        found = diagnose(*_of_job(record))
    look.tell(_document(title, found), *_lines(title, found))
    return 1 if found.failed and not found.known else 0


def _of_job(record: Record) -> tuple[Logs, Facts | None]:
    """Logs of a job, local or remote, and known facts about how it ended."""
    folder = Path(record.folder)
    logs = read_logs(folder)
    facts = _exit_code(folder)
    try:
        backend = backend_for(record)
        if record.id is not None:
            facts = _facts_of(backend, record)
        if record.there != record.folder and (said := backend.log(record)):
            logs = Logs((text_of(LOG, said),))
    except UserError as error:  # continue with the local files
        logs = Logs(logs.texts, (*logs.left_out, error.message))
    return logs, facts


def _facts_of(backend: Backend, record: Record) -> Facts:
    """State of a job in terms common to all executors, plus facts from its scheduler if it has any."""
    state = state_of(backend, record)
    facts = Facts(state.state, state.source or record.executor, state.sentence, exit_code=state.exit_code)
    raw = backend.facts(record) if isinstance(backend, HasFacts) and state.state in OVER else None
    if raw is None:
        return facts
    return replace(facts, state=raw.state, reason=raw.reason, exit_code=raw.exit_code, signal=raw.signal)


def _exit_code(folder: Path) -> Facts | None:
    """Exit code that the job's own script recorded."""
    try:
        code = int((folder / EXIT_CODE).read_text(encoding="ascii")[:20])
    except (OSError, ValueError):
        return None
    return Facts("failed" if code else "done", EXIT_CODE, f"ended with exit code {code}", exit_code=code)


def _lines(title: str, found: Diagnosis) -> list[str]:
    """Describe the first cause in full, the others in one line each."""
    read = f"{len(found.logs.texts)} log{'' if len(found.logs.texts) == 1 else 's'} read"
    lines = [printable(redact(title)) + (f": {_said(found.facts)}" if found.facts else "")]
    lines.append("; ".join([read, *(printable(redact(left)) for left in found.logs.left_out)]))
    goes_on = found.facts is not None and found.facts.condition in ("waiting", "running")
    first = next((one for one in found.findings if (found.failed or goes_on) and one.rule.level in WHY), None)
    if first:
        means, *advice = finding_lines(first.finding)
        lines += ["", means, f"  {_place(first)}", f"    {first.text}", *advice]
    elif found.failed:
        lines += ["", "It failed, and the logs contain no known error message."]
    else:
        lines += ["", "No sign of a failure." if found.logs.texts or found.facts else "No log to read."]
    if trace := found.traceback:
        where = printable(redact(trace.place)) + (f":{trace.line}" if trace.line else "")
        lines += ["", f"The first traceback of a process, at {where}:", *(f"  {line}" for line in trace.lines)]
    others = [one for one in found.findings if one is not first]
    if others:
        lines += ["", "Also seen:"]
    for one in others[:MORE]:
        lines += [f"  {one.rule.means}", f"    {_place(one)}: {one.text}"]
    if len(others) > MORE:
        lines.append(f"  and {len(others) - MORE} more; --json has them")
    if found.failed and not found.known and found.logs.texts:
        lines += [
            "",
            f"The end of {printable(found.logs.texts[0].name)}:",
            *(f"  {line}" for line in found.last_lines()),
        ]
    return lines


def _said(facts: Facts) -> str:
    return printable(redact(f"{facts.sentence} ({facts.source})"))


def _place(found: Match) -> str:
    line = f":{found.line}" if found.line else ""
    often = f", {found.count} lines" if found.count > 1 else ""
    where = f" in {found.files} logs" if found.files > 1 else ""
    return (
        f"{printable(redact(found.place))}{line}{often}{where}{', before the job was restarted' if found.over else ''}"
    )


def _document(title: str, found: Diagnosis) -> dict[str, object]:
    """JSON output of a diagnosis."""
    keys = ("place", "line", "text", "do", "count", "files", "over")
    return {
        "target": redact(title),
        "failed": found.failed,
        "known": found.known,
        "facts": None
        if found.facts is None
        else {key: getattr(found.facts, key) for key in ("condition", "sentence", "line", "source")},
        "findings": [
            {"id": one.rule.id, "level": one.rule.level, "means": one.rule.means}
            | {key: getattr(one, key) for key in keys}
            for one in found.findings
        ],
        "traceback": None
        if found.traceback is None
        else {key: getattr(found.traceback, key) for key in ("place", "line", "lines")},
        "read": [text.name for text in found.logs.texts],
        "left_out": [redact(left) for left in found.logs.left_out],
        "last_lines": found.last_lines(),
    }
