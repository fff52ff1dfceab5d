"""
Make the pages that say what the code says: settings, commands, events, metrics, the state diagram, recovery.

Each page is a pure function of a table in the code, so `--check` can tell whether somebody forgot to make them again.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from adws.adw_modules import events, state_machine
from adws.adw_modules.reports import charts, metrics
from adws.adw_modules.steps import context as step_context
from adws.adw_modules.steps import execution_update
from adws.cli import common as cli_common
from adws.cli import main as frame
from adws.config.settings import IGNORED_VARIABLES, RESERVED_PREFIXES, SECTIONS, SETTINGS, Setting

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import package_graph  # noqa: E402 - found by the path above
import recovery_table  # noqa: E402 - found by the path above
import reference_pages  # noqa: E402 - found by the path above

NOTE = "<!-- Made by scripts/docs from the code: change the code, then run scripts/docs. -->"
#: A field of a dataclass as it stands in the source: name, type, what it means.
FIELD = re.compile(r"^    (\w+): ([^=#\n]+?)(?: = [^#\n]*?)?(?:  #: (.*))?$", re.MULTILINE)


def make_pages(docs: Path) -> dict[Path, str]:
    """Return the text that each generated page should have."""
    makers: Mapping[str, Callable[[], str]] = {
        "settings.md": settings_page,
        "cli.md": cli_page,
        "events.md": events_page,
        "state-schema.md": lambda: reference_pages.schema_page(NOTE),
        "http-api.md": lambda: reference_pages.api_page(NOTE),
    }
    machine, recovery, metrics = docs / "state-machine.md", docs / "recovery.md", docs / "metrics.md"
    architecture, seeds = docs / "architecture.md", docs / "seeds.md"

    return {docs / name: make() for name, make in makers.items()} | {
        machine: with_diagram(machine),
        recovery: with_recovery_table(recovery),
        metrics: with_metrics(metrics),
        architecture: with_packages(architecture),
        seeds: with_seeds(seeds),
    }


# --- settings --------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return docs/settings.md."""
    return f"""# Settings

{NOTE}

Every setting can be given as an environment variable, most also in `adw.toml` in the home. The command line wins over
the environment, that over `adw.toml`, that over the default. `adw config` prints the
common settings and the changed ones, with the value in force and where it comes from; `adw config --all` prints every
one. The variable of `section.key` is `ADW_SECTION_KEY`. An empty variable counts as not set.

The home is `adw --home PATH`, else `ADW_HOME`, else the main checkout of the git repository you are in (also from
inside one of its worktrees), else the current directory. Relative paths start at the home.

Unknown variables that start with `ADW_`, unknown keys and bad values are errors that name the variable or the file and
line; all of them are reported at once. Setting a variable and one of its other names to different values is an error
too.

These variables are no settings, and no errors either:

{_table(("Variable", "What adw does with it"), _other_variables())}

Secrets are given by environment variables only, since `adw.toml` is a file to commit; `adw config` shows them as `set`
or `not set` (null with `--json`), and the password in a database URL as `***`.

{_table(("Variable", "Key in `adw.toml`", "Default", "Values", "Meaning"), [_setting_row(s) for s in SETTINGS])}

## Other tables of `adw.toml`

{_table(("Table", "Meaning"), [(f"`[{name}]`", description) for name, description in SECTIONS.items()])}

## An `adw.toml` with every key

Each key has its default. A key that has none stands behind a `#`, with what may be given.

```toml
{example_file()}```
"""


def _other_variables() -> Iterator[tuple[str, str]]:
    for name in IGNORED_VARIABLES:
        yield (
            f"`{name}`",
            "Known from other ADW set-ups. Ignored: it has no meaning in this version, `adw config` says so.",
        )
    for prefix in RESERVED_PREFIXES:
        yield f"`{prefix}*`", "Reserved for the test suite. Not read."


def example_file() -> str:
    """Return an adw.toml that changes nothing."""
    tables: dict[str, list[str]] = {}
    for setting in SETTINGS:
        table, _, key = setting.key.rpartition(".")
        if not setting.is_in_file:
            continue
        default = setting.default.replace("{state_dir}", "state")
        tables.setdefault(table, []).append(
            f"{key} = {_toml(default)}" if default else f"# {key} = {_toml(setting.values)}"
        )

    return "\n".join(f"[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in tables.items())


def _setting_row(setting: Setting) -> tuple[str, ...]:
    also = f" Also read from {_and([f'`{alias}`' for alias in setting.aliases])}." if setting.aliases else ""
    default = setting.default.replace("{state_dir}", "STATE_DIR")

    return (
        f"`{setting.env}`",
        f"`{setting.key}`" if setting.is_in_file else "-",
        f"`{default}`" if default else "not set",
        setting.values,
        setting.help + also,
    )


def _toml(text: str) -> str:
    return text if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else f'"{text}"'


# --- commands --------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return docs/cli.md."""
    root = click.Context(frame.cli, info_name="adw")
    sections = "\n".join(
        f"## {title}\n\n" + "\n".join(_section(root, entries))
        for title, entries in {**frame.COMMANDS, "Others": frame.OTHERS}.items()
    )
    options = _table(("Option", "Meaning"), _options(frame.cli, root))

    return f"""# Commands

{NOTE}

{frame.cli.help}

`adw [OPTIONS] COMMAND [ARGS]...`

{options}

Exit codes: 0 done; 1 it could not be done, and one line on stderr says why; 2 wrong use; 3 a bug in adw, with its
traceback in a log file that is named; 130 interrupted; 141 the reader of the output went away; 143 ended by SIGTERM.
With `--json` the output is one JSON document. Every command explains itself with `-h` or `--help`.

{sections}"""


def commands(ctx: click.Context | None = None) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command below *ctx*: its whole name, itself and its context."""
    ctx = ctx or click.Context(frame.cli, info_name="adw")
    group = ctx.command
    for name in group.list_commands(ctx) if isinstance(group, click.Group) else ():
        command = group.get_command(ctx, name)  # type: ignore[attr-defined]  # it is a group, or there is no name
        below = click.Context(command, info_name=name, parent=ctx)
        yield below.command_path, command, below
        yield from commands(below)


def _section(root: click.Context, names: Sequence[str]) -> Iterator[str]:
    for path, command, ctx in commands(root):
        if path.split()[1] not in names:
            continue
        usage = " ".join((path, *command.collect_usage_pieces(ctx)))
        yield f"### {path}\n\n{inspect.cleandoc(command.help or '')}\n\n`{usage}`\n"
        if rows := list(_options(command, ctx)):
            yield f"{_table(('Option', 'Meaning'), rows)}\n"
        if lines := cli_common.of(path):
            yield "".join(f"- `{typed}`: {what}\n" for typed, what in lines)


def _options(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Yield each option of a command as it is written, and its help."""
    for param in command.params:
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            yield f"`{record[0]}`", record[1]


# --- events ----------------------------------------------------------------------------------------------------


def events_page() -> str:
    """Return docs/events.md."""
    types = [(f"`{name}`", meaning) for name, meaning in events.EVENT_TYPES.items()]
    fields = [(f"`{name}`", f"`{kind}`", meaning) for name, kind, meaning in event_fields()]
    context = [(f"`{name}`", meaning) for name, meaning in events.CONTEXT_KEYS.items()]
    meta = [(f"`{name}`", meaning) for name, meaning in events.META_KEYS.items()]

    return f"""# Events

{NOTE}

An event is stored in the same commit as the step it tells of, and never changed after that. `adw events ID` shows
those of a workflow in order; with `--json`, fields that are empty are left out.

## Types

{_table(("Type", "Meaning"), types)}

## Fields

{_table(("Field", "Type", "Meaning"), fields)}

## What steps tell

Secrets are taken out of every event: by their names, by their looks, and where they are known. A value of more than
{execution_update.MAX_VALUE:,} characters of JSON is told as `{{"_truncated": true, "_size": n}}`; decisions are made
on the whole value before that. Where it is kept, the same table says where: `_execution` and `_index` are those of
`adw status EXECUTION --index N`, and `_kept` is the key of a result that templates read as `steps.NAME`.

All events of an execution have the same context. When it is more than
{step_context.MAX_SMALL:,} characters of JSON, its first and its last event have it whole, and the others the small
ones of its values.

{_table(("Key of `context`", "Meaning"), context)}

{_table(("Key of `meta`", "Meaning"), meta)}
"""


def event_fields() -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of every field of an event, as they stand in the source."""
    for name, kind, meaning in FIELD.findall(inspect.getsource(events.Event)):
        yield name, kind.strip(), meaning


# --- parts of pages --------------------------------------------------------------------------------------------


def with_diagram(page: Path) -> str:
    """Return docs/state-machine.md with the diagram of the state table between its marks."""
    block = charts.block(state_machine.StateTransition.TRANSITIONS)

    return _with_block(page, "state-diagram", block, what="diagram")


def with_recovery_table(page: Path) -> str:
    """Return docs/recovery.md with what the rule says between its marks."""
    return _with_block(page, "recovery-table", f"\n{_table(recovery_table.HEADER, recovery_table.rows())}\n\n")


def with_metrics(page: Path) -> str:
    """Return docs/metrics.md with every metric and every label between its marks."""
    header = ("Metric", "Type", "Labels", "Meaning")
    rows = [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels) or "-", metric.help)
        for metric in metrics.METRICS
    ]
    labels = [(f"`{name}`", meaning, _most(name)) for name, meaning in metrics.LABELS.items()]
    table, of_labels = _table(header, rows), _table(("Label", "Values", "At most"), labels)

    return _with_block(page, "metrics", f"\n{table}\n\n{of_labels}\n\n")


def _most(label: str) -> str:
    most = metrics.MOST_VALUES.get(label)

    return f"{most}, then `{metrics.OTHER}`" if most else "-"


def with_packages(page: Path) -> str:
    """Return docs/architecture.md with a line for each package, and the figure of their imports, between its marks."""
    rows = [(f"`{name.removeprefix('adws.')}`", what) for name, what in package_graph.package_lines()]
    table = f"\n{_table(('Package or module below `adws`', 'Purpose'), rows)}\n\n"
    text = _with_block(page, "packages", table)

    return _with_block(page, "package-figure", f"```mermaid\n{package_graph.figure()}\n```\n", what="figure", text=text)


def with_seeds(page: Path) -> str:
    """Return docs/seeds.md with its documents, the numbers of the code and the table of points between its marks."""
    documents = _table(("Document", "What it is about", "Gaps with tests"), reference_pages.seed_documents())
    text = _with_block(page, "seed-documents", f"\n{documents}\n\n")
    facts = _table(("Fact", "Value"), reference_pages.seed_facts())
    text = _with_block(page, "seed-facts", f"\n{facts}\n\n", text=text)
    points = _table(("No.", "Document", "Point", "Tests"), reference_pages.seed_points())

    return _with_block(page, "seed-points", f"\n{points}\n\n", text=text)


def _with_block(page: Path, name: str, block: str, *, what: str = "table", text: str = "") -> str:
    """Return the text of *page*, or *text*, with *block* between the marks of that name."""
    begin, end = f"<!-- generated: {name} -->", "<!-- /generated -->"
    text = text or page.read_text(encoding="utf-8")
    marks = re.compile(rf"({begin}\n).*?({end})", re.DOTALL)
    if marks.search(text) is None:
        raise SystemExit(f"{page} has no marks for the {what}: {begin} ... {end}")

    return marks.sub(lambda found: f"{found[1]}{block}{found[2]}", text)


# --- text ------------------------------------------------------------------------------------------------------


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]

    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def main(args: Sequence[str] | None = None, docs: Path = ROOT / "docs") -> int:
    """Write the pages, or with --check compare them; return the exit code."""
    parser = argparse.ArgumentParser(description="Make the pages of docs/ that come from the code.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail when a page is out of date")
    is_check = parser.parse_args(args).check
    stale = {path: text for path, text in make_pages(docs).items() if not _is_same(path, text)}
    for path, text in stale.items():
        print(f"docs/{path.name} is out of date: run scripts/docs" if is_check else f"made docs/{path.name}")
        if not is_check:
            path.write_text(text, encoding="utf-8")

    return 1 if is_check and stale else 0


def _is_same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
