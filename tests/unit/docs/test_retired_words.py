"""
Words of earlier versions that readers could not guess: none is left in help, messages, labels, pages or comments.

Run as a program, it lists what it finds: `.venv/bin/python -m tests.unit.docs.test_retired_words`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from adws.cli import main as frame
from tests import doc_commands

ROOT = doc_commands.ROOT
#: what a text may not say -> what it says instead
RETIRED = {
    r"mend(s|ed|ing)?": "fix",
    r"(held|holds?|holding) off": "circuit breaker open",
    r"(by|of|all|its|their|three|two|\d+) looks|looks (of|at) (it|them)": "appearance, checks",
    r"outside part(y|ies)": "external service",
    r"what (waits|is waiting)": "queued runs",
    r"(what )?(came|come|comes|become|becomes|became) of (it|them|that|this|a|the|work|every|what)": "result",
    r"what (it|they|adw|steps|this|that) tells?": "output, events",
    r"(tried|tries|trying) (it |them )?again": "retried, retries, retrying",
    r"who(so)?ever|whomever": "anyone who, the person who",
    r"desks?": "handler, service",
    r"keepers?": "lease renewer, owner",
    r"deeds?": "effect, action",
    r"conductors?": "run executor, worker",
    r"rooms? of": "factory",
    r"(is|are|was|were|be|been) given back": "released",
    r"gives? (it|them) back": "release",
    r"taken back": "reclaimed, requeued",
    r"(tell|tells|told|telling) (\w+ )?apart": "distinguished",
    r"(go|goes|went|going|gone) on (with|where|at|from|after|working)|made? (it )?go on": "resume, continue",
    r"asks? of": "require",
    r"let (\w+ )?on\b": "reset",
    r"strays?": "disallowed changes",
    r"errands?": "job",
    r"standings?": "status, gauges",
    r"prescription|consultation": "decision, advice",
    r"left[- ]overs": "leftover resources",
    r"giv(e|es|en|ing) (it|a workflow|them|work|the workflow) up|given up": "abandon, fail",
    r"brought up": "migrated, caught up",
    r"is (?-i:none)(?=[.,;:])": "is not a ..., does not exist",
    r"(are|is) none of": "not one of",
    r"what (helps|is the matter)\b": "fix",
    r"behind (it|them) stands|stands (there|here|in|behind|beside|on)": "is, is listed",
    r"nothing of (ours|it)": "no ...",
    r"comes? to rest": "finish, settle",
    r"say(s)? no\b": "reject",
    r"it looks as if|looks as though": "apparently",
    r"which is whose|whose it is": "owner",
}
_PATTERNS = [
    (re.compile(rf"(?<![\w/.-])(?:{words})(?![\w-])".replace(" ", r"\s+"), re.IGNORECASE), said)
    for words, said in RETIRED.items()
]
PAGES = [*doc_commands.PAGES, ROOT / "AGENTS.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"]
TEMPLATES = [path for kind in ("*.html", "*.js", "*.j2", "*.md") for path in sorted((ROOT / "adws").rglob(kind))]


def findings(text: str) -> Iterator[tuple[int, str]]:
    """Yield each retired word of *text*: the line on which it begins, counting from 0, and what to write instead."""
    for pattern, said in _PATTERNS:
        for found in pattern.finditer(text):
            words = " ".join(found[0].split())
            yield text.count("\n", 0, found.start()), f"'{words}': write {said}"


def in_file(path: Path) -> list[str]:
    """Return each retired word of a page or template."""
    name = path.relative_to(ROOT)
    return [f"{name}:{line + 1}: {why}" for line, why in findings(path.read_text(encoding="utf-8"))]


def in_module(path: Path) -> list[str]:
    """Return each retired word in the strings, docstrings and comments of a module."""
    source = path.read_text(encoding="utf-8")
    texts = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    texts += [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    name = path.relative_to(ROOT)
    return [f"{name}:{number + line}: {why}" for number, text in texts for line, why in findings(text)]


@cache
def helps() -> dict[str, str]:
    """Return the help of every command and option, by name."""
    result: dict[str, str] = {}

    def walk(ctx: click.Context) -> None:
        command = ctx.command
        result[ctx.command_path] = "\n".join(filter(None, (command.help, command.short_help, command.epilog)))
        for param in command.params:
            if isinstance(param, click.Option):
                result[f"{ctx.command_path} {param.opts[0]}"] = param.help or ""
        for name in command.list_commands(ctx) if isinstance(command, click.Group) else ():
            below = command.get_command(ctx, name)
            if below is not None:
                walk(click.Context(below, info_name=name, parent=ctx))

    walk(click.Context(frame.cli, info_name="adw"))
    return result


def in_help() -> list[str]:
    """Return each retired word in the help of a command or option."""
    return [f"{name} --help: {why}" for name, text in helps().items() for _, why in findings(text)]


def modules() -> list[Path]:
    """Return the modules of adw, without the revisions of the database, which are never changed."""
    return [path for path in sorted((ROOT / "adws").rglob("*.py")) if "versions" not in path.parts]


def test_no_help_text_has_a_retired_word():
    assert len(helps()) > 100
    assert in_help() == []


def test_no_page_has_a_retired_word():
    for page in PAGES:
        assert in_file(page) == [], page


def test_no_message_label_docstring_or_comment_has_a_retired_word():
    assert [one for path in modules() for one in in_module(path)] == []
    assert [one for path in TEMPLATES for one in in_file(path)] == []


def test_a_retired_word_would_be_found():
    for text, is_found in [
        ("Say what is wrong, and what mends it.", True),
        ("anthropic is held off until 08:04", True),
        ("a secret is found by its looks", True),
        ("an outside\nparty", True),
        ("Show what waits for a worker", True),
        ("what came of it", True),
        ("a call that is tried again", True),
        ("whoever claims it", True),
        ("the keeper of the lease", True),
        ("Recommend a fix; the circuit breaker is open; retrying in 5 s", False),
        ("it looks in the file; recommended; desktop; shopkeeper", False),
    ]:
        assert bool([*findings(text)]) is is_found, text


def test_strings_docstrings_and_comments_count(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.unit.docs.test_retired_words.ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text('"""The desk."""\n# a desk\nraise ValueError(f"the {1} desk\\n")\n')

    found = "'desk': write handler, service"
    assert sorted(in_module(module)) == [f"module.py:{line}: {found}" for line in (1, 2, 3)]


if __name__ == "__main__":
    found = [*in_help(), *(one for path in [*PAGES, *TEMPLATES] for one in in_file(path))]
    found += [one for path in modules() for one in in_module(path)]
    sys.exit("\n".join(found))
