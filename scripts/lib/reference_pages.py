"""Parts of reference pages that are made from the code: every field of a document, every operation of the API."""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adws import app as app_module
from adws.adw_modules import document
from adws.config import load as config_load
from adws.web.app import create_api
from adws.web.dependencies import ServerState

#: The parts of a document, the whole first; each is a section of its page.
PARTS = (
    document.WorkflowDocument,
    document.PhaseRecord,
    document.AttemptRecord,
    document.HistoryEntry,
    document.Resource,
    document.WorkflowRef,
    document.FrozenIssue,
    document.Cost,
    document.RollbackRecord,
)
#: A field of a model as it stands in the source: name, type, default, what it means.
FIELD = re.compile(r"^    (\w+): ([^=#\n]+?)(?: = ([^#\n]*?))?(?:  #: (.*))?$", re.MULTILINE)
_ALIAS = re.compile(r'alias="(\w+)"')
#: A parameter with the same meaning in so many operations is explained once.
COMMON = 4


def document_parts() -> str:
    """Return every field of the parts of a workflow's document; those that explain themselves share a line."""
    sections = []
    for part in PARTS:
        rows = fields(part)
        text = f"**{part.__name__}.** {inspect.getdoc(part)}\n\n"
        text += "".join(f"- `{name}` ({facts}): {meaning}\n" for name, facts, meaning in rows if meaning)
        plain: dict[str, list[str]] = {}
        for name, facts, meaning in rows:
            if not meaning:
                plain.setdefault(facts, []).append(f"`{name}`")
        sections.append(text + "".join(f"- {', '.join(names)} ({facts})\n" for facts, names in plain.items()))

    return "\n".join(sections).rstrip()


def fields(part: type) -> list[tuple[str, str, str]]:
    """Return each field of a part as it is written, its type and default, and what it means."""
    rows = []
    for name, kind, default, meaning in FIELD.findall(inspect.getsource(part)):
        alias = _ALIAS.search(default)
        facts = "; ".join(filter(None, (kind.strip().replace(" | None", "?"), _default(default))))
        rows.append((alias[1] if alias else name, facts, meaning))

    return rows


def _default(text: str) -> str:
    """Return a default as it is written; that something is empty where nothing is set goes without saying."""
    return "" if text in ("", "None", "0", "0.0", '""', "False") or text.startswith("Field(") else f"`{text}`"


def operations() -> str:
    """Return every operation of the API with its parameters; those of many operations are explained once."""
    described = describe()
    every = [*_operations(described)]
    meanings: dict[str, list[str]] = {}
    for _, _, operation in every:
        for name, _, what in _parameters(operation, described):
            meanings.setdefault(name, []).append(what)
    common = {
        name: next(filter(None, texts), "")
        for name, texts in meanings.items()
        if len(texts) >= COMMON and len({*filter(None, texts)}) in (1, 2)
    }
    lines = [f"- `{name}`: {what}" for name, what in common.items()]
    for method, path, operation in every:
        rows = [*_parameters(operation, described)]
        text = " ".join((operation.get("description") or operation.get("summary", "")).split())
        token = "" if operation.get("security") else " No token."
        answers = "/".join(status for status in operation["responses"] if status.startswith("2"))
        plain = [f"`{name}`" for name, _, what in rows if name in common or not what]
        answer = "" if answers == "200" else f" ({answers})"
        lines.append(f"- `{method} {path}`{answer}: {text}{token}{f' Takes {_and(plain)}.' if plain else ''}")
        own = [one for one in rows if one[2] and one[0] not in common]
        lines += [f"  - `{name}`{'' if kind == 'string' else f' ({kind})'}: {what}" for name, kind, what in own]

    return "\n".join(lines[: len(common)]) + "\n\n" + "\n".join(lines[len(common) :])


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _parameters(operation: Mapping[str, Any], described: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each parameter of the query and each field of the body: name, type, meaning; one of both counts once."""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    query = [one for one in operation.get("parameters", ()) if one["in"] != "path"]
    rows = {one["name"]: (one["schema"], _meaning(one)) for one in query}
    rows |= {name: (schema, "") for name, schema in _properties(body, described) if name not in rows}
    for name, (schema, meaning) in rows.items():
        yield name, _kind(schema), meaning or _meaning(schema)


def describe() -> dict[str, Any]:
    """Return the description of the API."""
    with (
        tempfile.TemporaryDirectory() as place,
        app_module.open_home(config_load.load(env={}, cwd=Path(place)), role="docs") as home,
    ):
        return create_api(home, ServerState(home)).openapi()


def _operations(described: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _meaning(one: Mapping[str, Any]) -> str:
    return str(one.get("description", ""))


def _properties(schema: Mapping[str, Any], described: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    name = next((one["$ref"] for one in (schema, *schema.get("anyOf", ())) if "$ref" in one), "").rpartition("/")[2]
    yield from described["components"]["schemas"].get(name, {}).get("properties", {}).items()


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])

    return str(schema.get("type", "any"))
