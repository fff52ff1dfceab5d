"""
The commands and settings that messages and pages name: found in the texts of the source, of pages and of notes.

What stands in braces in a message is filled in at run time, and stands for a value here.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from adws.cli import main as frame
from adws.config.settings import BY_NAME
from tests import doc_commands

ROOT = doc_commands.ROOT
#: What a placeholder may stand for; a command is right when it can be typed with one of them.
SAMPLES = ("1a2b3c4d", "1", "build", "max_attempts=8", "trees/1a2b3c4d", "postgresql://adw@db/adw", "bash", "all", ".")
#: A value that a person fills in, or that is filled in at run time.
PLACEHOLDER = re.compile(r"\{[^{}]*\}|[A-Z][A-Z_/]*|<[^<>]+>|\[[A-Z_]+\]")
#: A value as it is typed.
LITERAL = re.compile(r"[\w./:@-]*\d[\w./:@-]*|[\w.-]+=[\w.-]+|[\w.-]*[./][\w./-]*\w|\"[^\"]*\"")
#: How the name of a setting would look if it were one of the table `Settings`, and not of adw.toml.
INTERNAL = {
    setting.name: setting.key
    for setting in BY_NAME.values()
    if setting.key and setting.key != setting.name and setting.key.replace(".", "_") == setting.name
}
KEYS = {setting.key for setting in BY_NAME.values() if setting.key}
SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}
#: What stands behind a section and a dot, and is no key: files, modules, columns, hosts.
NO_KEYS = re.compile(r"\.(py|html|json|md|com|\w+_id|token|\w+_at|model_)$")
MODULES = {f"{path.parent.name}.{path.stem}" for path in (ROOT / "adws").rglob("*.py")}


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) if isinstance(value, ast.Constant) else "{}" for value in node.values)
    return ""


def messages(path: Path) -> Iterator[str]:
    """Yield every text of a module of the source, or of a template of the dashboard."""
    if path.suffix != ".py":
        yield re.sub(r"<[^<>]*>", " ", path.read_text())
        return
    tree = ast.parse(path.read_text())
    inside = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    yield from (text for node in ast.walk(tree) if id(node) not in inside and (text := text_of(node)))


@cache
def all_texts() -> tuple[tuple[str, str], ...]:
    """Return each text with its file: of the source, of the pages, and of the notes on changes."""
    source = [path for path in sorted((ROOT / "adws").rglob("*")) if path.suffix in {".py", ".html"}]
    pages = [*doc_commands.PAGES, *sorted((ROOT / "changes").glob("*.md"))]
    of_source = ((path, text) for path in source if "versions" not in path.parts for text in messages(path))
    of_pages = ((path, text) for path in pages for text in doc_commands.texts(path))

    return tuple((str(path.relative_to(ROOT)), text) for path, text in (*of_source, *of_pages))


def advised(text: str) -> Iterator[str]:
    """Yield what follows each `adw ` in *text*, up to the end of its line or its code."""
    for found in re.finditer(r"(?<![\w/.-])adw +(?=[a-z])([^\n`|>]*)", text):
        yield found[1].replace("[OPTIONS]", "")


def command_in(rest: str) -> tuple[click.Command, list[str], list[str]]:
    """Return the command at the beginning of *rest*, its names, and the words behind them."""
    words = re.findall(r"\"[^\"]*\"|\S+", re.sub(r"(?<=[a-z])\{[^{}]*\}", "", rest))
    command: click.Command = frame.cli
    ctx = click.Context(command, info_name="adw")
    path: list[str] = []
    while isinstance(command, click.Group) and words:
        word = words[0].rstrip(".,;:)'\"")
        found = command.get_command(ctx, word) if re.fullmatch(r"[a-z-]+", word) else None
        if found is None:
            break
        path.append(word)
        is_last = word != words.pop(0)
        command, ctx = found, click.Context(found, info_name=word, parent=ctx)
        if is_last:
            words = []
    return command, path, words


def why_not(rest: str) -> str:
    """Return why `adw` cannot be typed with what stands at the beginning of *rest*, "" when it can or is a sentence."""
    command, path, words = command_in(rest)
    if not path:
        return why_no_sentence(words)
    return why_not_parsed(command, arguments_in(command, words), path)


def typed_in_messages() -> list[tuple[str, ...]]:
    """Return every command that a message of the source advises, each once, with its placeholders."""
    found = set()
    for place, text in all_texts():
        for rest in advised(text) if place.startswith("adws/") else ():
            command, path, words = command_in(rest)
            if path:
                found.add((*path, *arguments_in(command, words)))
    return sorted(found)


def why_no_sentence(words: list[str]) -> str:
    """Return why words behind `adw` that name no command look as if they should."""
    word = words[0].strip(".,;:)'\"")
    names = frame.cli.list_commands(click.Context(frame.cli))
    meant = difflib.get_close_matches(word, names, n=1, cutoff=0.85)
    is_verb = word.removesuffix("s") in names  # such as "adw serves ..."
    is_typed = len(words) > 1 and re.match(r"(--[a-z]|ID\b)", words[1])
    return f"adw {word}: there is no such command" if (meant and not is_verb) or is_typed else ""


def arguments_in(command: click.Command, words: list[str]) -> list[str]:
    """Return the options and values at the beginning of *words*; with the first other word the sentence goes on."""
    takes_value = {
        name: not (isinstance(param, click.Option) and (param.is_flag or param.count))
        for param in command.params
        for name in (*param.opts, *param.secondary_opts)
    }
    result: list[str] = []
    for word in words:
        bare = word.rstrip(".,;:)'") if not word.endswith("...") else word
        is_value_of_option = bool(result) and result[-1].startswith("-") and takes_value.get(result[-1], False)
        is_option = re.fullmatch(r"--?[a-z][a-z-]*", bare)
        if not (is_option or is_value_of_option or PLACEHOLDER.fullmatch(bare) or LITERAL.fullmatch(bare)):
            break
        result.append(bare)
        if bare != word:
            break
    # An option that is only named stands for itself with any value.
    return [*result, "VALUE"] if result and takes_value.get(result[-1], False) else result


def why_not_parsed(command: click.Command, args: list[str], path: list[str]) -> str:
    """Return why *command* refuses *args*, whatever their placeholders stand for; a missing value is none."""
    if isinstance(command, click.Group) and not args:
        return ""  # its name stands for all its commands
    why = ""
    for sample in SAMPLES:
        filled = [sample if PLACEHOLDER.fullmatch(arg) else arg.strip('"') for arg in args]
        try:
            with contextlib.suppress(click.MissingParameter, click.exceptions.Exit):
                command.make_context(path[-1], filled, parent=click.Context(frame.cli, info_name="adw"))
        except click.UsageError as exc:
            why = why or f"adw {' '.join([*path, *args])}: {exc.format_message()}"
        except Exception as exc:  # noqa: BLE001 - a value that a callback refuses: another sample may do
            why = why or f"adw {' '.join([*path, *args])}: {exc}"
        else:
            return ""
    return why


def wrong_settings(text: str, *, is_page: bool) -> Iterator[str]:
    """Yield the names in *text* that look like settings, and are none."""
    for found in re.finditer(r"(?<![\w./<-])([a-z]+)\.([a-z][a-z_0-9]+)(?![\w(./*-])", text):
        key = found[0]
        is_table = text[found.start() - 1 : found.start()] == "["
        if found[1] in SECTIONS and key not in KEYS and not is_table and not NO_KEYS.search(key) and key not in MODULES:
            yield key
    # In the source such a name is an argument; in a sentence it is meant for a person.
    code = re.findall(r"`([^`\n]+)`", text) if is_page else [text] if " " in text and not text.startswith("\n") else []
    for one in code:
        yield from (name for name in re.findall(r"(?<![\w.*-])[a-z]+_[a-z_]+(?![\w=*(])", one) if name in INTERNAL)
