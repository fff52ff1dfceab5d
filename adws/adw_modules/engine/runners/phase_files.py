"""
What a phase's process is told in files and variables, and the result it writes: the same for commands and agents.

The process gets few variables: those every program needs, those that are named for it, and what adw tells it. adw's own
tokens are never among them, whoever names them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping

from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.engine.runners.phase_result import MAX_RESULT_BYTES, bad_result, parse_result
from adws.adw_modules.errors import RunFailed, UnsafePath
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.own_secrets import OWN_SECRETS
from adws.adw_modules.redaction import Redactor

#: Variables that a process gets when they are set, besides all that begin with LC_.
ALLOWED_VARIABLES = ("PATH", "HOME", "USER", "SHELL", "TERM", "LANG", "TMPDIR")


def environment(
    env: Mapping[str, str], names: Iterable[str], context: PhaseContext, *, own_secrets: frozenset[str] = OWN_SECRETS
) -> dict[str, str]:
    """Return the variables of *env* that a process may have, those of *names* among them, and those of the attempt."""
    wanted = {*ALLOWED_VARIABLES, *names}
    given = {name: value for name, value in env.items() if name in wanted or name.startswith("LC_")}
    allowed = {name: value for name, value in (given | dict(context.env)).items() if name not in own_secrets}

    return {**allowed, "PWD": str(context.cwd)}


def told(context: PhaseContext, files: AttemptFiles, *, redactor: Redactor) -> dict[str, str]:
    """Write down for a process what it works on, and return the variables that say where."""
    document = context.document
    issue: JsonObject = document.issue.model_dump(mode="json") if document.issue else {}
    about: JsonObject = {**issue, "number": document.issue_number, "repository": document.repository}

    return {
        "ADW_ID": document.adw_id,
        "ADW_ISSUE_NUMBER": "" if document.issue_number is None else str(document.issue_number),
        "ADW_PHASE": context.phase,
        "ADW_ATTEMPT": str(context.attempt_number),
        "ADW_RESULT_FILE": str(files.result),
        "ADW_ISSUE_FILE": str(files.write("issue.json", _clean(about, redactor))),
        "ADW_HINTS_FILE": str(files.write("hints.json", _clean(list(context.hints), redactor))),
    }


def read_result(files: AttemptFiles, *, redactor: Redactor) -> JsonObject:
    """Return what a process wrote to its result file, {} when it wrote none; raise RunFailed."""
    try:
        raw = files.read("result.json", max_bytes=MAX_RESULT_BYTES)
    except (TooLarge, UnsafePath, OSError) as exc:
        with contextlib.suppress(OSError):  # nobody reads it, and secrets may stand in it
            files.discard("result.json")
        raise bad_result(str(exc)) from exc
    if raw is None:
        return {}

    clean = redactor.scrub_bytes(raw)
    if clean != raw:
        files.write("result.json", clean)
    return parse_result(clean)


def clean_result(files: AttemptFiles, *, redactor: Redactor) -> None:
    """Take secrets out of the result of a process that was ended: nobody asks for it, and it stays on the disk."""
    with contextlib.suppress(RunFailed):
        read_result(files, redactor=redactor)


def _clean(value: object, redactor: Redactor) -> bytes:
    return redactor.scrub_bytes(json.dumps(value, ensure_ascii=False, indent=1).encode())
