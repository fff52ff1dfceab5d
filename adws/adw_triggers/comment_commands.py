"""
Parse the commands in a comment or in the body of an issue.

Pure and without a model: the same text always gives the same command. A command begins its line; commands in code,
quotations and hidden comments are ignored. An ambiguous text is reported, never guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from adws.adw_modules import identifiers
from adws.adw_modules.workflow.library import ALIASES, built_in_names

#: Commands to an existing workflow, as `/adw COMMAND`.
SAID_COMMANDS = ("resume", "stop", "pause", "rollback", "retry", "status", "approve", "reject", "abandon")
#: Commands that start a workflow, as `/adw COMMAND [NAME]`.
START_WORDS = ("run", "start")
#: The model sets that a request can choose from.
MODEL_SETS = ("base", "heavy", "lightweight")
#: Only so many characters of a text are read; forges accept no longer ones.
MAX_TEXT = 65_536

_ROUNDS = 20
_HIDDEN = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_CODE_TAG = re.compile(r"<(/?)(?:pre|code)\b", re.IGNORECASE)
_WORD = re.compile(r"\S+")
_FORM = re.compile(r"adw_[a-z]+(?:_[a-z]+)*", re.IGNORECASE)
_SENTENCE_END = ".,;:!?"
_MODEL_SET = re.compile(rf"\bmodel[_ ]set\s*[:=]?\s*({'|'.join(MODEL_SETS)})\b", re.IGNORECASE)
_ADW_ID = re.compile(
    r"(?<![\w-])(?:adw[_ ]id\s*[:=]?\s*|adw-(?=[A-Za-z0-9]{8}(?![\w-])))([A-Za-z0-9][\w-]{0,63})", re.ASCII
)
#: The arguments of the original ADW scripts: the issue number and the id of the workflow to continue.
_ARGUMENTS = re.compile(
    r"(?:#?(?P<number>(?![0-9]{8}(?![0-9]))[1-9][0-9]{0,17})(?!\S)\s*)?(?:(?P<adw_id>[0-9a-f]{8})[.,;:!?]*(?!\S))?\s*"
)
_AGAIN = re.compile(r"(?<!\S)--again(?!\S)", re.IGNORECASE)
_OWN_MARKS = ("[adw]", "[adw-agents]", "[adw-bot]", "<!-- adw:")
_OWN_BEGINNING = re.compile(r"[a-f0-9]{8}_\w{1,100}[_:]")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommentCommand:
    """The command and options found in a text."""

    command: str = ""  #: one of SAID_COMMANDS; "": start or continue a workflow
    workflow: str = ""  #: the name as written; "": the default workflow
    adw_id: str = ""
    model_set: str = ""
    issue_number: int | None = None  #: given after the name of the workflow, as the ADW scripts accept it
    is_again: bool = False  #: start even if there is an open pull request
    text: str = ""  #: the rest of the text


@dataclass(frozen=True, kw_only=True, slots=True)
class Ambiguous:
    """A text that looks like a request but has no clear meaning."""

    reason: str


def is_ours(text: str) -> bool:
    """Return whether adw, or one of the scripts it replaced, wrote *text*."""
    lowered = text.lower()

    return any(mark in lowered for mark in _OWN_MARKS) or _OWN_BEGINNING.match(text.lstrip()) is not None


def read_comment(text: str, *, workflows: Collection[str] = ()) -> CommentCommand | Ambiguous | None:
    """Return the request in a comment, or None; *workflows* are names beyond the built-in ones."""
    lines = list(_spoken_lines(_visible(text)))
    first = next((line for line in lines if line.strip()), "")
    words = first.split()
    if words and words[0].lower() == "/adw":
        return _read_slash(lines, first, frozenset(workflows))
    if words and words[0].lower() == "adw" and not _without_options("\n".join(lines).strip()[3:]).strip():
        return _options(lines)

    return _read_forms(lines, frozenset(workflows))


def read_body(text: str, *, workflows: Collection[str] = ()) -> CommentCommand | Ambiguous | None:
    """Return the request in the body of an issue; only a known workflow at the beginning of a line counts."""
    shown = _visible(text)
    if "adw_" not in shown.lower():  # true of most bodies, and then no line needs parsing
        return None

    return _read_forms(list(_spoken_lines(shown)), frozenset(workflows))


def read_options(text: str) -> CommentCommand:
    """Return only the model set that the body of an issue chooses, for a request that came another way."""
    shown = _visible(text)
    if "model" not in shown.lower():
        return CommentCommand()

    return CommentCommand(model_set=_options(list(_spoken_lines(shown))).model_set)


# --- lines -----------------------------------------------------------------------------------------------------


def _spoken_lines(shown: str) -> Iterator[str]:
    """Yield the lines of *shown*, with lines of code and quotations replaced by blank ones."""
    fence, in_tag = "", False
    for line in shown.split("\n"):
        match = _FENCE.match(line)
        if fence:
            # A fence is closed by one of the same character, at least as long, with nothing after it.
            is_end = match is not None and match[1].startswith(fence) and not match[2].strip()
            fence = "" if is_end else fence
            yield ""
        elif match is not None:
            fence = match[1]
            yield ""
        else:
            tags = _CODE_TAG.findall(line)
            yield "" if in_tag or tags or _is_quoted(line) else line
            in_tag = tags[-1] == "" if tags else in_tag


def _is_quoted(line: str) -> bool:
    return line.lstrip(" ").startswith(">") or line.startswith(("    ", "\t"))


def _visible(text: str) -> str:
    shown = text[:MAX_TEXT].replace("\r\n", "\n").replace("\r", "\n")
    for _ in range(_ROUNDS):
        # Repeat: removing one comment may join the two halves of another.
        before, shown = shown, _HIDDEN.sub("", shown)
        if shown == before:
            return shown

    return ""  # crafted to hide something


# --- requests --------------------------------------------------------------------------------------------------


def _read_slash(lines: list[str], first: str, workflows: Collection[str]) -> CommentCommand | Ambiguous:
    said = first.split()
    if len(said) == 1:
        return _options(lines)
    word, rest = said[1].lower().rstrip(_SENTENCE_END), said[2:]
    if word in SAID_COMMANDS:
        return _command(word, lines, first)
    name = said[1]
    if word in START_WORDS:
        name = rest[0] if rest and not _is_option(" ".join(rest)) else ""
        if name and identifiers.FOREIGN.fullmatch(name) is None:
            return Ambiguous(reason=f"{name[:40]!r} cannot be the name of a workflow")
        return _start(_canonical(name, workflows) or name, lines, after=first, skip=2 + bool(name))
    known = _canonical(name, workflows)
    if known:
        return _start(known, lines, after=first, skip=2)
    if _is_option(" ".join(said[1:])):
        return _start("", lines, after=first, skip=1)

    return Ambiguous(reason=f"/adw {name[:40]!r} is no command: there are run, {', '.join(SAID_COMMANDS)}")


def _command(word: str, lines: list[str], first: str) -> CommentCommand:
    rest = _rest_of(lines, first, skip=2)
    beginning, _, after = rest.partition(" ")
    if identifiers.is_ours(beginning):
        return CommentCommand(command=word, adw_id=beginning, text=after.strip())
    match = _ADW_ID.match(rest)
    if match is not None:
        return CommentCommand(command=word, adw_id=match[1], text=rest[match.end() :].strip())

    return CommentCommand(command=word, text=rest)


def _read_forms(lines: list[str], workflows: Collection[str]) -> CommentCommand | Ambiguous | None:
    asked: dict[str, str] = {}
    inside = ""
    for line in lines:
        for place, word in enumerate(_WORD.findall(line)):
            name = _named(word, workflows)
            if name and place == 0:
                asked.setdefault(name, line)
            elif name:
                inside = inside or name
            elif place == 0 and _FORM.fullmatch(word) and word.lower().endswith("_iso"):
                return Ambiguous(reason=f"{word[:80]} is no workflow that is known here")
    if len(asked) > 1:
        return Ambiguous(reason=f"it names {' and '.join(asked)}: name one workflow")
    if not asked and inside:
        return Ambiguous(reason=f"{inside} stands inside a line: begin a line with it to start it")
    if not asked:
        return None
    ((name, line),) = asked.items()

    return _start(name, lines, after=line, skip=1)


def _start(workflow: str, lines: list[str], *, after: str, skip: int) -> CommentCommand:
    asked = _options(lines)
    said, number, adw_id = _without_arguments(_without_options(after), skip=skip, is_named=bool(asked.adw_id))
    plain = [said if line == after else _without_options(line) if _is_option(line.strip()) else line for line in lines]
    rest = _rest_of(plain, said, skip=skip)

    return replace(asked, workflow=workflow, adw_id=asked.adw_id or adw_id, issue_number=number, text=rest)


def _without_arguments(line: str, *, skip: int, is_named: bool) -> tuple[str, int | None, str]:
    """
    Return *line* without the issue number and workflow id after its first *skip* words, and those two.

    A number counts only together with an id (also one given as an option, *is_named*) or at the end of the line;
    otherwise it is text.
    """
    words = line.split(maxsplit=skip)
    rest = words[skip] if len(words) > skip else ""
    found = _ARGUMENTS.match(rest)
    number, adw_id = (found["number"], found["adw_id"]) if found is not None else (None, None)
    if found is None or not (adw_id or (number and (is_named or found.end() == len(rest)))):
        return line, None, ""

    return " ".join([*words[:skip], rest[found.end() :]]).rstrip(), int(number) if number else None, adw_id or ""


def _rest_of(lines: list[str], first: str, *, skip: int) -> str:
    """Return *lines* joined, without the first *skip* words of the line *first*."""
    rest = first.split(maxsplit=skip)[skip:]
    place = lines.index(first)

    return "\n".join([*lines[:place], *rest, *lines[place + 1 :]]).strip()


def _named(word: str, workflows: Collection[str]) -> str:
    """Return the workflow named by *word*, such as `adw_plan_build_iso`, or "" if it names none."""
    bare = word.rstrip(_SENTENCE_END)
    if _FORM.fullmatch(bare) is None:
        return ""

    return _canonical(bare, workflows)


def _canonical(name: str, workflows: Collection[str]) -> str:
    """Return the canonical spelling of *name*, or ""; ZTE (shipping without a review) must be written in capitals."""
    if name in workflows:
        return name
    known = _known_names()
    lowered = name.lower()
    if "ZTE" in name:
        return known.get(lowered.replace("zte", "ZTE"), "")

    return known.get(lowered, "")


@lru_cache(maxsize=1)
def _known_names() -> Mapping[str, str]:
    """Return the built-in names and aliases by their lower-case form, with ZTE kept in capitals."""
    names = (*ALIASES, *built_in_names())

    return {name.lower().replace("zte", "ZTE") if "ZTE" in name else name.lower(): name for name in names}


# --- options ---------------------------------------------------------------------------------------------------


def _is_option(text: str) -> bool:
    return any(option.match(text) is not None for option in (_MODEL_SET, _ADW_ID, _AGAIN))


def _options(lines: list[str]) -> CommentCommand:
    """Return the options on the line of the request and on lines that begin with an option."""
    beginnings = ("/adw", "adw", "adw_")
    chosen = []
    for line in lines:
        word = (_WORD.findall(line) or [""])[0].lower()
        if _is_option(line.strip()) or word in beginnings or word.startswith("adw_"):
            chosen.append(line)
    said = "\n".join(chosen)
    model, adw_id = _MODEL_SET.search(said), _ADW_ID.search(said)

    return CommentCommand(
        model_set=model[1].lower() if model else "",
        adw_id=adw_id[1] if adw_id else "",
        is_again=_AGAIN.search(said) is not None,
    )


def _without_options(text: str) -> str:
    return _AGAIN.sub("", _ADW_ID.sub("", _MODEL_SET.sub("", text)))
