"""
Make the pages and parts of pages that come from the code: settings, commands, events, metrics, states, recovery.

Each is a pure function of a table in the code, so `--check` can tell whether somebody forgot to make them again.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from adws.adw_modules import events, state_machine
from adws.adw_modules.reports import charts, metrics
from adws.cli import main as frame
from adws.config.settings import IGNORED_VARIABLES, RESERVED_PREFIXES, SECTIONS, SETTINGS, Setting

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import package_graph  # noqa: E402 - found by the path above
import recovery_table  # noqa: E402 - found by the path above
import reference_pages  # noqa: E402 - found by the path above

#: An option with the same help in so many commands is explained once.
COMMON = 4
NOTE = "<!-- Made by scripts/docs from the code: change the code, then run scripts/docs. -->"
#: A field of a dataclass as it stands in the source: name, type, what it means.
FIELD = re.compile(r"^    (\w+): ([^=#\n]+?)(?: = [^#\n]*?)?(?:  #: (.*))?$", re.MULTILINE)


def make_pages(docs: Path) -> dict[Path, str]:
    """Return the text that each page with generated parts should have."""
    pages: dict[Path, str] = {docs / "settings.md": settings_page(), docs / "cli.md": cli_page()}
    for name, blocks in BLOCKS.items():
        text = (docs / name).read_text(encoding="utf-8")
        for mark, make in blocks.items():
            text = with_block(docs / name, mark, make(), text)
        pages[docs / name] = text

    return pages


# --- settings --------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return docs/settings.md."""
    tables = dict.fromkeys(setting.key.rpartition(".")[0] for setting in SETTINGS)
    sections = "\n".join(
        (f"## [{table}]\n\n" if table else "")
        + "".join(f"- {_setting(one)}\n" for one in SETTINGS if one.key.rpartition(".")[0] == table)
        for table in tables
    )

    return f"""# Settings

{NOTE}

`section.key` is a key of `adw.toml` in the home, and the environment variable `ADW_SECTION_KEY`. Precedence: command
line, environment, `adw.toml`, default. An empty variable counts as not set. `adw config` prints the values in force
with their origin; `adw config --all` prints every setting. The home is `adw --home PATH`, else `ADW_HOME`, else the
main checkout of the git repository you are in, else the current directory. Relative paths start at the home.

Unknown keys and variables, bad values, and two names of one setting with different values are errors that name the
file and line or the variable; all are reported at once. {_and(_code(f"{one}*" for one in RESERVED_PREFIXES))} are
reserved for tests. Known from other ADW set-ups and ignored: {_and(_code(IGNORED_VARIABLES))}.

Parentheses have the default, then what may be given. *env* is set by an environment variable only; secrets also by a
file that `VARIABLE_FILE` names, or by systemd credentials. Lists are written with commas.
A size is a number of bytes, or a number with KiB, MiB or GiB.

{sections}
## Other tables of `adw.toml`

{_list((f"`[{name}]`", description) for name, description in SECTIONS.items())}
"""


def _setting(setting: Setting) -> str:
    default = setting.default.replace("{state_dir}", "STATE_DIR")
    values = setting.values if re.search(r"[\d,/]| or ", setting.values) else ""  # the name of a unit says little
    facts = "; ".join(filter(None, (default and f"`{default}`", values, "" if setting.is_in_file else "*env*")))
    also = f" Also {_and(_code(setting.aliases))}." if setting.aliases else ""

    return " ".join(f"`{setting.key}`{facts and f' ({facts})'}: {setting.help}{also}".split())


# --- commands --------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return docs/cli.md."""
    root = click.Context(frame.cli, info_name="adw")
    every = [*commands(root)]
    seen = Counter(row for _, command, ctx in every for row in _options(command, ctx))
    common = [row for row, count in seen.items() if count >= COMMON]
    sections = "\n".join(
        f"## {title}\n\n" + "\n".join(_command(*one, common) for one in every if one[0].split()[1] in names)
        for title, names in {**frame.COMMANDS, "Others": frame.OTHERS}.items()
    )

    return f"""# Commands

{NOTE}

{frame.cli.help}

`adw [OPTIONS] COMMAND [ARGS]...`

{_list(_options(frame.cli, root))}

{_list((f"{name}, of {_whose(every, name)}", what) for name, what in common)}

Exit codes: 0 done; 1 failed, with one line on stderr; 2 wrong usage; 3 a bug in adw, whose traceback is in the log file
that the message names; 130 interrupted; 141 the reader of the output closed it; 143 ended by SIGTERM. `adw COMMAND
--help` explains more and shows examples.

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


def _command(path: str, command: click.Command, ctx: click.Context, common: Sequence[tuple[str, str]]) -> str:
    arguments = [piece for piece in command.collect_usage_pieces(ctx) if piece != "[OPTIONS]"]
    usage = f" {' '.join(arguments)}" if arguments and not isinstance(command, click.Group) else ""
    rows = [*_options(command, ctx)]
    summary = inspect.cleandoc(command.help or "").split("\n\n")[0]
    own = [row for row in rows if row not in common]

    return f"### {path}{usage}\n\n{summary}\n" + (f"\n{_list(own)}\n" if own else "")


def _whose(every: Sequence[tuple[str, click.Command, click.Context]], name: str) -> str:
    """Return which commands have the option *name*, in few words."""
    able = [(path, command) for path, command, _ in every if not isinstance(command, click.Group)]
    without = [f"`{path}`" for path, command in able if name not in dict(_options(command, click.Context(command)))]

    return f"all commands but {_and(without)}" if without else "all commands"


def _options(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Yield each option of a command as it is written, and its help."""
    for param in command.params:
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            yield f"`{record[0]}`", record[1]


# --- events ----------------------------------------------------------------------------------------------------


def event_types() -> str:
    """Return the types of events, the keys of their context, and what each means."""
    return _list((f"`{name}`", meaning) for name, meaning in events.EVENT_TYPES.items())


def event_parts() -> str:
    """Return the fields of an event and the keys of its context and meta."""
    fields = _list((f"`{name}` ({kind.replace(' | None', '?')})", meaning) for name, kind, meaning in event_fields())
    context = _list((f"`context.{name}`", meaning) for name, meaning in events.CONTEXT_KEYS.items())
    meta = _list((f"`meta.{name}`", meaning) for name, meaning in events.META_KEYS.items())

    return f"{fields}\n{context}\n{meta}"


def event_fields() -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of every field of an event, as they stand in the source."""
    for name, kind, meaning in FIELD.findall(inspect.getsource(events.Event)):
        yield name, kind.strip(), meaning


# --- parts of pages --------------------------------------------------------------------------------------------


def recovery() -> str:
    """Return what the rule of recovery says about each run."""
    return _table(recovery_table.HEADER, recovery_table.rows())


def metric_lines() -> str:
    """Return every metric, and every label."""
    rows = (
        (f"`{metric.name}` ({', '.join((metric.kind, *_code(metric.labels)))})", metric.help)
        for metric in metrics.METRICS
    )
    labels = ((f"`{name}`{_most(name)}", meaning) for name, meaning in metrics.LABELS.items())

    return f"{_list(rows)}\n\nLabels:\n\n{_list(labels)}"


def _most(label: str) -> str:
    most = metrics.MOST_VALUES.get(label)

    return f" (at most {most}, then `{metrics.OTHER}`)" if most else ""


def packages() -> str:
    """Return a line for each package, the uppermost layer first."""
    return _list((f"`{name.removeprefix('adws.')}`", what) for name, what in package_graph.package_lines())


def with_block(page: Path, name: str, block: str, text: str) -> str:
    """Return *text*, that of *page*, with *block* between the marks of that name."""
    begin, end = f"<!-- generated: {name} -->", "<!-- /generated -->"
    marks = re.compile(rf"({begin}\n).*?({end})", re.DOTALL)
    if marks.search(text) is None:
        raise SystemExit(f"{page} has no marks for the part {name}: {begin} ... {end}")
    inner = block if block.startswith("```") else f"\n{block}\n\n"

    return marks.sub(lambda found: f"{found[1]}{inner}{found[2]}", text)


#: page -> name of a generated part -> what makes it
BLOCKS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "workflows.md": {"state-diagram": lambda: charts.block(state_machine.StateTransition.TRANSITIONS)},
    "guarantees.md": {"recovery-table": recovery},
    "http-api.md": {"operations": reference_pages.operations, "metrics": metric_lines},
    "events.md": {
        "event-types": event_types,
        "event-fields": event_parts,
        "document": reference_pages.document_parts,
    },
    "architecture.md": {"packages": packages},
}


# --- text ------------------------------------------------------------------------------------------------------


def _list(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"- {name}: {' '.join(what.split())}" for name, what in rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]

    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]


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
