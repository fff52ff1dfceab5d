"""
Detect the languages of a repository and the commands that test, check and set it up.

Detection is pure: it uses the names of files and the texts of a few. What the repository itself defines comes first (a
target of its Makefile, a script of its package.json), then the usual commands of its tools. A command without evidence
is not guessed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from adws.adw_modules.errors import UsageError
from adws.config import toml_file

# `adw init` reads these files of a repository. It writes only new ones: it follows no links and replaces nothing.


#: Directories whose files are listed too; in the first three only executable ones.
_PROGRAMS = ("bin", "script", "scripts")
_LISTED = (*_PROGRAMS, "spec", "test", "tests")
#: Only so many bytes of a file are read.
_MAX_BYTES = 1 << 20


class ProjectFiles:
    """The files below *root*."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> frozenset[str]:
        """Return the names in the root and in a few of its directories; names of directories end with a slash."""
        names = set(_listed(self._root))
        for folder in _LISTED:
            for name in _listed(self._root / folder):
                if folder not in _PROGRAMS or os.access(self._root / folder / name, os.X_OK):
                    names.add(f"{folder}/{name}")

        return frozenset(names)

    def texts(self, names: Collection[str]) -> dict[str, str]:
        """Return the texts of those *names* that can be read."""
        return {name: text for name in names if (text := self.text(name)) is not None}

    def text(self, name: str) -> str | None:
        """Return the beginning of a file, or None if it is not a readable file."""
        path = self._root / name
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file:
                return file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def has(self, name: str) -> bool:
        """Return whether *name* exists, even as a broken link."""
        return os.path.lexists(self._root / name)

    def write_new(self, name: str, text: str) -> bool:
        """Write a new file; return False if it exists, raise UsageError if it cannot be written."""
        if self.has(name):
            return False
        self._write(name, text, os.O_EXCL)

        return True

    def add_lines(self, name: str, lines: Collection[str]) -> None:
        """Append *lines* to a file, creating it if needed."""
        before = self.text(name) or ""
        gap = "\n" if before and not before.endswith("\n") else ""
        self._write(name, gap + "".join(f"{line}\n" for line in lines), os.O_APPEND)

    def _write(self, name: str, text: str, flag: int) -> None:
        path = self._root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flag, 0o666)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as exc:
            raise UsageError(f"{path} cannot be written: {exc.strerror or exc}") from exc


def _listed(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
    except OSError:
        return


#: Files whose text is read; of all others only the name counts.
LOOKED_AT = (
    "Justfile",
    "Makefile",
    "composer.json",
    "justfile",
    "package.json",
    "pubspec.yaml",
    "pyproject.toml",
    "requirements-dev.txt",
    "requirements.txt",
    "setup.cfg",
    "tox.ini",
)

#: Characters with a meaning to a shell, or a variable assignment in front.
_FOR_A_SHELL = re.compile(r"[|&;<>()$`*?\[\]{}~#!\n]|^\s*\w+=")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectCommand:
    """A command, and the evidence for it."""

    source: str  #: the file, and possibly the place in it
    argv: tuple[str, ...] = ()
    shell: str = ""  #: instead of argv: one line for a shell

    @property
    def line(self) -> str:
        """The command as a person would type it."""
        return self.shell or shlex.join(self.argv)


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The languages and commands of a repository."""

    languages: tuple[str, ...] = ()
    test: ProjectCommand | None = None
    lint: ProjectCommand | None = None
    setup: tuple[ProjectCommand, ...] = ()  #: run in a fresh checkout before anything else


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tree:
    """The files of a repository."""

    names: frozenset[str]  #: relative paths; a directory ends with a slash
    texts: Mapping[str, str] = field(default_factory=dict)

    def has(self, pattern: str) -> str:
        """Return the first name that matches *pattern*, or ""; `*` does not cross directories."""
        depth = pattern.count("/")
        fitting = (name for name in sorted(self.names) if name.count("/") == depth and fnmatchcase(name, pattern))

        return next(fitting, "")

    def finds(self, file: str, pattern: str) -> bool:
        """Return whether *pattern* matches in the text of *file*, with `^` at each line."""
        return re.search(pattern, self.texts.get(file, ""), re.MULTILINE) is not None

    def has_key(self, file: str, table: str, key: str) -> bool:
        """Return whether a JSON or TOML file has *key* in *table*; a broken file has no keys."""
        text = self.texts.get(file, "")
        try:
            data: object = tomllib.loads(text) if file.endswith(".toml") else json.loads(text or "{}")
        except (ValueError, RecursionError):
            return False
        keys = data.get(table) if isinstance(data, dict) else None
        if not isinstance(keys, dict) or key not in keys:
            return False
        value = keys[key]
        is_script = isinstance(value, str) and bool(value.strip()) and _NO_TEST not in value

        return is_script or file != "package.json"

    def source(self, sign: str) -> str:
        """Return the place in the repository that matches *sign* (see `_KINDS`), for people, or ""."""
        place, _, pattern = sign.partition(" ~ ")
        file, _, part = place.partition(", ")
        if pattern:
            return place if self.finds(file, pattern) else ""
        if part:
            table, _, key = part.partition(".")
            return place if self.has_key(file, table, key) else ""
        first, *others = (self.has(name) for name in sign.split(" + "))

        return first if all(others) else ""

    def command(self, rules: _Rules) -> ProjectCommand | None:
        """Return the command of the first rule with a matching sign, or None."""
        python = next((f"{run} " for lock, run, _ in _PYTHON_MANAGERS if self.has(lock)), "")
        fills = {
            "python": python,
            "pytest": f"{python}pytest" if python else "python3 -m pytest",
            "node": next((program for lock, program, _ in _NODE_MANAGERS if self.has(lock)), "npm"),
            "dart": "flutter" if self.finds("pubspec.yaml", r"^\s+sdk:\s*flutter") else "dart",
        }
        for command, *signs in rules:
            source = next(filter(None, map(self.source, signs)), "")
            if source:
                line = command.format(**fills, folder=source.rpartition("/")[0] or ".")
                return ProjectCommand(argv=tuple(line.split()), source=source)

        return None


def detect(names: Collection[str], texts: Mapping[str, str]) -> Project:
    """
    Return the languages and commands of the repository with these files.

    *names* are paths relative to its root, with a slash after directories; *texts* has the existing files of LOOKED_AT.
    """
    tree = _Tree(names=frozenset(names), texts=texts)
    kinds = [kind for kind in _KINDS if any(map(tree.has, kind.signs))]
    tests = [*_own_words(tree, "test", "tests"), *(tree.command(kind.test) for kind in kinds)]
    lints = [*_own_words(tree, "lint"), *(tree.command(rules) for rules in (*(kind.lint for kind in kinds), _ANY_LINT))]

    return Project(
        languages=tuple(dict.fromkeys(kind.language for kind in kinds)),
        test=next(filter(None, tests), None),
        lint=next(filter(None, lints), None),
        setup=tuple(filter(None, (tree.command(kind.setup) for kind in kinds))),
    )


def given(text: str, source: str) -> ProjectCommand:
    """Return the command that a person typed; it uses a shell only if its text needs one."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words or _FOR_A_SHELL.search(text):
        return ProjectCommand(shell=text.strip(), source=source)

    return ProjectCommand(argv=tuple(words), source=source)


# --- commands that the repository defines ----------------------------------------------------------------------


def _own_words(tree: _Tree, *targets: str) -> Iterator[ProjectCommand]:
    """Yield the repository's own commands with these names."""
    for target in targets:
        for file, program in (("Makefile", "make"), ("justfile", "just"), ("Justfile", "just")):
            if tree.finds(file, rf"^@?{target}(?![\w-])[\w ]*:(?!=)"):
                yield ProjectCommand(argv=(program, target), source=f"{file}, {target}")
        for folder in ("scripts", "script", "bin"):
            if tree.has(f"{folder}/{target}"):
                yield ProjectCommand(argv=(f"{folder}/{target}",), source=f"{folder}/{target}")


# --- kinds of projects -----------------------------------------------------------------------------------------

#: Commands, each followed by its signs; the first command with a matching sign is used.
_Rules: TypeAlias = Sequence[tuple[str, ...]]

#: The placeholder that npm writes into a package.json without tests.
_NO_TEST = "no test specified"
#: Lock file, the prefix that runs a command in the environment, the command that sets the environment up.
_PYTHON_MANAGERS = (
    ("uv.lock", "uv run", "uv sync"),
    ("poetry.lock", "poetry run", "poetry install"),
    ("pdm.lock", "pdm run", "pdm install"),
    ("Pipfile.lock", "pipenv run", "pipenv sync --dev"),
)
#: Lock file, the package manager, the command that sets a checkout up.
_NODE_MANAGERS = (
    ("pnpm-lock.yaml", "pnpm", "pnpm install --frozen-lockfile"),
    ("yarn.lock", "yarn", "yarn install --frozen-lockfile"),
    ("bun.lock", "bun", "bun install --frozen-lockfile"),
    ("bun.lockb", "bun", "bun install --frozen-lockfile"),
    ("package-lock.json", "npm", "npm ci"),
    ("npm-shrinkwrap.json", "npm", "npm ci"),
)
_PYTEST = r"(?<![\w-])pytest(?![\w-])"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """A language, the signs that it is used, and the rules for its commands."""

    language: str
    signs: tuple[str, ...]
    test: _Rules = ()
    lint: _Rules = ()
    setup: _Rules = ()


#: Every known kind; if several match, the commands of the first are used.
#:
#: A sign is a name (`mvnw`, `test/*.py`), two names that both exist (`Rakefile + test/`), a key of a table
#: (`pyproject.toml, tool.ruff`), or a pattern in the text of a file (`setup.cfg, flake8 ~ PATTERN`).
_KINDS = (
    _Kind(
        language="Python",
        signs=(
            "pyproject.toml",
            "setup.py",
            "setup.cfg",
            "requirements.txt",
            "Pipfile",
            "tox.ini",
            "noxfile.py",
            "*.py",
        ),
        test=(
            (
                "{pytest}",
                "pyproject.toml, tool.pytest",
                r"setup.cfg, pytest ~ ^\[tool:pytest\]",
                r"tox.ini, pytest ~ ^\[pytest\]",
                *("pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py"),
                f"pyproject.toml, pytest ~ {_PYTEST}",
                f"requirements-dev.txt, pytest ~ {_PYTEST}",
                f"requirements.txt, pytest ~ {_PYTEST}",
                f"tox.ini, pytest ~ {_PYTEST}",
            ),
            ("tox", "tox.ini"),
            ("nox", "noxfile.py"),
            ("python3 manage.py test", "manage.py"),
            ("python3 -m unittest discover -s {folder}", "tests/test_*.py", "test/test_*.py", "test_*.py"),
        ),
        lint=(
            ("{python}ruff check .", "pyproject.toml, tool.ruff", "ruff.toml", ".ruff.toml"),
            (
                "{python}flake8",
                ".flake8",
                r"setup.cfg, flake8 ~ ^\[flake8\]",
                r"tox.ini, flake8 ~ ^\[flake8\]",
            ),
            ("{python}pylint --recursive=y .", "pyproject.toml, tool.pylint"),
            ("{python}black --check .", "pyproject.toml, tool.black"),
        ),
        setup=tuple((setup, lock) for lock, _, setup in _PYTHON_MANAGERS),
    ),
    _Kind(
        language="JavaScript",
        signs=("package.json",),
        test=tuple((f"{{node}} run {name}", f"package.json, scripts.{name}") for name in ("test", "test:unit")),
        lint=tuple((f"{{node}} run {name}", f"package.json, scripts.{name}") for name in ("lint", "check")),
        setup=tuple((setup, lock) for lock, _, setup in _NODE_MANAGERS),
    ),
    _Kind(
        language="Deno",
        signs=("deno.json", "deno.jsonc"),
        test=(("deno test", "deno.json", "deno.jsonc"),),
        lint=(("deno lint", "deno.json", "deno.jsonc"),),
    ),
    _Kind(
        language="Go",
        signs=("go.mod",),
        test=(("go test ./...", "go.mod"),),
        lint=(
            ("golangci-lint run", *(f".golangci.{ending}" for ending in ("yml", "yaml", "toml", "json"))),
            ("go vet ./...", "go.mod"),
        ),
    ),
    _Kind(
        language="Rust",
        signs=("Cargo.toml",),
        test=(("cargo test", "Cargo.toml"),),
        lint=(("cargo clippy --all-targets -- -D warnings", "Cargo.toml"),),
    ),
    _Kind(
        language="Java",
        signs=("pom.xml",),
        test=(("./mvnw --batch-mode test", "mvnw"), ("mvn --batch-mode test", "pom.xml")),
    ),
    _Kind(
        language="Java or Kotlin",
        signs=("build.gradle", "build.gradle.kts"),
        test=(("./gradlew test", "gradlew"), ("gradle test", "build.gradle", "build.gradle.kts")),
    ),
    _Kind(language="Scala", signs=("build.sbt",), test=(("sbt test", "build.sbt"),)),
    _Kind(
        language=".NET",
        signs=("*.sln", "*.slnx", "*.csproj", "*.fsproj"),
        test=(("dotnet test", "*.sln", "*.slnx", "*.csproj", "*.fsproj"),),
        lint=(("dotnet format --verify-no-changes", ".editorconfig"),),
    ),
    _Kind(
        language="Ruby",
        signs=("Gemfile",),
        test=(("bundle exec rspec", ".rspec", "spec/"), ("bundle exec rake test", "Rakefile + test/")),
        lint=(("bundle exec rubocop", ".rubocop.yml"),),
        setup=(("bundle install", "Gemfile.lock"),),
    ),
    _Kind(
        language="PHP",
        signs=("composer.json",),
        test=(
            ("composer run test", "composer.json, scripts.test"),
            ("vendor/bin/phpunit", "phpunit.xml", "phpunit.xml.dist"),
        ),
        lint=(("composer run lint", "composer.json, scripts.lint"),),
        setup=(("composer install --no-interaction", "composer.lock"),),
    ),
    _Kind(
        language="Elixir",
        signs=("mix.exs",),
        test=(("mix test", "mix.exs"),),
        lint=(("mix format --check-formatted", ".formatter.exs"),),
        setup=(("mix deps.get", "mix.lock"),),
    ),
    _Kind(language="Swift", signs=("Package.swift",), test=(("swift test", "Package.swift"),)),
    _Kind(
        language="Dart",
        signs=("pubspec.yaml",),
        test=(("{dart} test", "pubspec.yaml"),),
        lint=(("{dart} analyze", "pubspec.yaml"),),
    ),
    _Kind(language="C or C++", signs=("CMakeLists.txt", "meson.build", "configure.ac", "*.c", "*.cpp")),
)
#: Checks for any language.
_ANY_LINT: _Rules = (("pre-commit run --all-files", ".pre-commit-config.yaml"),)


# --- the `adw.toml` that a repository begins with, and the lines of its `.gitignore` ---------------------------
#
# A value that was not found is left as a comment that shows how to write it.


#: Holds both state and worktrees if the repository itself has a directory named state or trees.
OWN_FOLDER = ".adw"

_HEAD = """\
# Settings of adw for this repository. What does not stand here has its default: `adw config` shows all that is in force
# and where it comes from. Tokens never stand here: they come from the environment, so that they are never committed.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What `adw init` knows about a repository."""

    project: Project = field(default_factory=Project)
    repository: str = ""  #: owner/name on GitHub
    repository_source: str = ""
    remote: str = "origin"  #: the git remote that branches are pushed to
    agent: str = "claude"
    agents: tuple[str, ...] = ()  #: the installed ones
    folders: tuple[str, ...] = ("state", "trees")  #: directories of state and worktrees, relative to the home


def ignored_lines(found: Findings) -> tuple[str, ...]:
    """Return the lines for `.gitignore`: adw's directories, and the file with ports that worktrees get."""
    return (*(f"/{name}/" for name in found.folders), ".ports.env")


def settings_text(found: Findings) -> str:
    """Return the text of `adw.toml`."""
    quoted, project = toml_file.quoted, found.project
    parts = [_HEAD]
    if found.folders == (OWN_FOLDER,):
        parts.append(
            "# The repository has a directory state or trees of its own, so adw keeps what it makes elsewhere.\n"
            f'[state]\ndir = "{OWN_FOLDER}/state"\n\n[trees]\ndir = "{OWN_FOLDER}/trees"\n'
        )
    if found.remote != "origin":
        parts.append(f"# The remote that branches are pushed to.\n[git]\nremote = {quoted(found.remote)}\n")
    if found.repository:
        parts.append(
            f"# Found in: {found.repository_source}. The token comes from ADW_GITHUB_TOKEN (or GITHUB_TOKEN).\n"
            f"[github]\nrepository = {quoted(found.repository)}\n"
        )
    else:
        parts.append(
            "# No repository on GitHub was found, so there are no issues to take up and no pull requests: the work of\n"
            "# `adw run NUMBER --title TITLE --body TEXT` ends on a branch. With GitHub (and ADW_GITHUB_TOKEN set):\n"
            '# [github]\n# repository = "owner/name"\n'
        )
    there = f"Installed here: {', '.join(found.agents)}." if found.agents else "No agent was found here: install one."
    parts.append(
        f"# The agent that works on phases. {there} `adw workflow agents` shows what each can do.\n"
        f"[agent]\nname = {quoted(found.agent)}\n"
        '# model = "sonnet"        # without it, the agent\'s own choice\n'
        '# permissions = "edit"    # read, edit, all: what it may do without asking\n'
    )
    if project.setup:
        sources = ", ".join(dict.fromkeys(command.source for command in project.setup))
        lines = quoted("\n".join(command.line for command in project.setup))
        parts.append(
            "# Each workflow works in a fresh git worktree. This is run there first, one command a line.\n"
            f"# Found in: {sources}.\n[worktree]\nsetup = {lines}\n"
        )
    else:
        parts.append(
            "# Each workflow works in a fresh git worktree. What has to be run there first, one command a line:\n"
            '# [worktree]\n# setup = "npm ci"\n'
        )

    return "\n".join([*parts, _BASE, _gate("lint", project.lint), _gate("test", project.test), _LIMITS])


def _gate(phase: str, command: ProjectCommand | None) -> str:
    if command is None:
        return (
            f"# No command for {phase} was found: the agent alone decides. To let a command decide, too:\n"
            f'# [phases.{phase}]\n# gates = [{{ command = ["make", "{phase}"] }}]\n'
        )
    if command.shell:
        written = f"shell = {toml_file.quoted(command.shell)}"
    else:
        written = f"command = {toml_file.listed(command.argv)}"

    return f"{_WHAT_GATES_DO[phase]}# Found in: {command.source}.\n[phases.{phase}]\ngates = [{{ {written} }}]\n"


_WHAT_GATES_DO = {
    "lint": (
        "# The agent fixes what the checks of this repository find; then this command decides. While it is red, the\n"
        "# agent is asked again, with the output of the command.\n"
    ),
    "test": (
        "# The agent tests and reports, then this command runs: the phase passes only if both say so. If one does\n"
        "# not, the work goes back to build, with the findings of the agent or the output of the command.\n"
    ),
}

_BASE = """\
# Before an agent is paid, the commands of gates are run on the commit that work starts from. What is red there is
# reported, and no agent is started (require). compare: only new failures count; ignore: they are not run there.
# [gates]
# base = "require"
"""

_LIMITS = """\
# Limits, with their defaults. `adw quota` shows how much of each is used.
# [quota]
# max_cost = 10               # US dollars that one workflow may cost
# max_cost_per_day = 100      # US dollars that all may cost in a day
# min_free_disk = "10 GiB"    # work starts only with as much room where worktrees are
"""
