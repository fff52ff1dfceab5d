"""
What a repository is made of, by the files in it: its languages, and the commands that test it, check it and set it up.

Pure: decides by the names of files and the texts of a few. What the repository says itself comes first (a target of its
Makefile, a script of its package.json), then what its tools are usually called with. A command that nothing speaks for
is not guessed at.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from adws.adw_modules.errors import UsageError
from adws.config import toml_file

# The files of a repository that `adw init` reads, and those it writes: new ones only.
#
# Links are not followed where something is written, and nothing that is there is replaced.


#: Directories whose files count too; of the first three only programs.
_PROGRAMS = ("bin", "script", "scripts")
_LISTED = (*_PROGRAMS, "spec", "test", "tests")
#: Most bytes of a file that are read.
_MAX_BYTES = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MORE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class ProjectFiles:
    """The files below *root*."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> frozenset[str]:
        """Return what is in the root and in a few directories of it; a directory ends with a slash."""
        return frozenset(self._names())

    def _names(self) -> Iterator[str]:
        yield from _listed(self._root)
        for folder in _LISTED:
            for name in _listed(self._root / folder):
                if folder not in _PROGRAMS or os.access(self._root / folder / name, os.X_OK):
                    yield f"{folder}/{name}"

    def texts(self, names: Collection[str]) -> dict[str, str]:
        """Return the texts of those of *names* that are there and can be read."""
        return {name: text for name in names if (text := self.text(name)) is not None}

    def text(self, name: str) -> str | None:
        """Return the beginning of a file, None when it is not there or is no file."""
        path = self._root / name
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file:
                return file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def has(self, name: str) -> bool:
        """Say whether there is anything called *name*, also a link that leads nowhere."""
        return os.path.lexists(self._root / name)

    def write_new(self, name: str, text: str) -> bool:
        """Write a file that is not there yet; False when there is one. Raises UsageError when it cannot be."""
        path = self._root / name
        if self.has(name):
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, _NEW, 0o666)
        except OSError as exc:
            raise _cannot_write(path, exc) from exc
        _write(fd, text, path)

        return True

    def add_lines(self, name: str, lines: Collection[str]) -> None:
        """Add *lines* to the end of a file, which is made when it is not there."""
        path = self._root / name
        before = self.text(name) or ""
        try:
            fd = os.open(path, _MORE, 0o666)
        except OSError as exc:
            raise _cannot_write(path, exc) from exc
        gap = "\n" if before and not before.endswith("\n") else ""
        _write(fd, gap + "".join(f"{line}\n" for line in lines), path)


def _listed(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
    except OSError:
        return


def _write(fd: int, text: str, path: Path) -> None:
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        raise _cannot_write(path, exc) from exc


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written: {error.strerror or error}")


#: Files whose text is looked at; all others are known by their names.
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

#: What means something to a shell; a variable in front is meant for one, too.
_FOR_A_SHELL = re.compile(r"[|&;<>()$`*?\[\]{}~#!\n]|^\s*\w+=")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectCommand:
    """A command, and what speaks for it."""

    source: str  #: the file, and the place in it
    argv: tuple[str, ...] = ()
    shell: str = ""  #: one line for a shell instead

    @property
    def line(self) -> str:
        """How a person types it."""
        return self.shell or shlex.join(self.argv)


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """What a repository is made of."""

    languages: tuple[str, ...] = ()
    test: ProjectCommand | None = None
    lint: ProjectCommand | None = None
    setup: tuple[ProjectCommand, ...] = ()  #: what a fresh checkout needs before anything can be run in it


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tree:
    """The files of a repository."""

    names: frozenset[str]  #: relative paths; a directory ends with a slash
    texts: Mapping[str, str] = field(default_factory=dict)

    def has(self, *patterns: str) -> str:
        """Return the first name that one of *patterns* fits, "" when none does; `*` stays within one directory."""
        for pattern in patterns:
            depth = pattern.count("/")
            for name in sorted(self.names):
                if name.count("/") == depth and fnmatchcase(name, pattern):
                    return name

        return ""

    def finds(self, file: str, pattern: str) -> bool:
        """Say whether the text of *file* has *pattern* in it, a line at a time."""
        return re.search(pattern, self.texts.get(file, ""), re.MULTILINE) is not None

    def table(self, file: str, *keys: str) -> Mapping[str, object]:
        """Return a table of a JSON or TOML file; an empty one when there is none, or when the file is broken."""
        text = self.texts.get(file, "")
        try:
            result: object = tomllib.loads(text) if file.endswith(".toml") else json.loads(text or "{}")
        except (ValueError, RecursionError):
            return {}
        for key in keys:
            result = result.get(key) if isinstance(result, dict) else None

        return result if isinstance(result, dict) else {}


def detect(names: Collection[str], texts: Mapping[str, str]) -> Project:
    """
    Return what the repository with these files is made of.

    *names* are paths relative to its root, directories with a slash at the end; *texts* has those of LOOKED_AT that
    are there.
    """
    tree = _Tree(names=frozenset(names), texts=texts)
    kinds = [kind for kind in _KINDS if tree.has(*kind.signs)]
    tests = [*_own_words(tree, "test", "tests"), *filter(None, (kind.test(tree) for kind in kinds))]
    lints = [*_own_words(tree, "lint"), *filter(None, (kind.lint(tree) for kind in (*kinds, _ANY)))]

    return Project(
        languages=tuple(dict.fromkeys(kind.language for kind in kinds)),
        test=tests[0] if tests else None,
        lint=lints[0] if lints else None,
        setup=tuple(filter(None, (kind.setup(tree) for kind in kinds))),
    )


def given(text: str, source: str) -> ProjectCommand:
    """Return the command that somebody typed: for a shell only when it has something in it that needs one."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words or _FOR_A_SHELL.search(text):
        return ProjectCommand(shell=text.strip(), source=source)

    return ProjectCommand(argv=tuple(words), source=source)


# --- what the repository says itself ---------------------------------------------------------------------------


def _own_words(tree: _Tree, *targets: str) -> Iterator[ProjectCommand]:
    """Yield the commands that the repository gives these names."""
    for target in targets:
        for file, program in (("Makefile", "make"), ("justfile", "just"), ("Justfile", "just")):
            if tree.finds(file, rf"^@?{target}(?![\w-])[\w ]*:(?!=)"):
                yield ProjectCommand(argv=(program, target), source=f"{file}, {target}")
        for folder in ("scripts", "script", "bin"):
            if tree.has(f"{folder}/{target}"):
                yield ProjectCommand(argv=(f"{folder}/{target}",), source=f"{folder}/{target}")


# --- kinds of projects -----------------------------------------------------------------------------------------

_Find = Callable[[_Tree], ProjectCommand | None]


def _nothing(tree: _Tree) -> None:
    del tree


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """A language or tool, what shows that it is used, and how it is called."""

    language: str
    signs: tuple[str, ...]
    test: _Find = _nothing
    lint: _Find = _nothing
    setup: _Find = _nothing


def _when(argv: str, *signs: str) -> _Find:
    """Return what finds the command *argv* when a file of *signs* is there."""

    def find(tree: _Tree) -> ProjectCommand | None:
        name = tree.has(*signs)

        return ProjectCommand(argv=tuple(argv.split()), source=name) if name else None

    return find


def _either(*finds: _Find) -> _Find:
    """Return what finds what the first of *finds* does that finds anything."""
    return lambda tree: next((command for find in finds if (command := find(tree)) is not None), None)


# --- Python ----------------------------------------------------------------------------------------------------

#: Lock file -> the program that runs commands in its environment, and how that is set up.
_PYTHON_MANAGERS = (
    ("uv.lock", "uv run", "uv sync"),
    ("poetry.lock", "poetry run", "poetry install"),
    ("pdm.lock", "pdm run", "pdm install"),
    ("Pipfile.lock", "pipenv run", "pipenv sync --dev"),
)


def _python_prefix(tree: _Tree) -> tuple[str, ...]:
    return next((tuple(prefix.split()) for lock, prefix, _ in _PYTHON_MANAGERS if tree.has(lock)), ())


def _pytest(tree: _Tree) -> ProjectCommand | None:
    source = _pytest_source(tree)
    if not source:
        return None
    prefix = _python_prefix(tree)

    return ProjectCommand(argv=(*prefix, "pytest") if prefix else ("python3", "-m", "pytest"), source=source)


def _pytest_source(tree: _Tree) -> str:
    """Return what says that the tests are pytest's, "" when nothing does."""
    if "pytest" in tree.table("pyproject.toml", "tool"):
        return "pyproject.toml, tool.pytest"
    for file, pattern in (("setup.cfg", r"^\[tool:pytest\]"), ("tox.ini", r"^\[pytest\]")):
        if tree.finds(file, pattern):
            return f"{file}, pytest"
    if result := tree.has("pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py"):
        return result
    for file in ("pyproject.toml", "requirements-dev.txt", "requirements.txt", "tox.ini"):
        if tree.finds(file, r"(?<![\w-])pytest(?![\w-])"):
            return f"{file}, pytest"

    return ""


def _unittest(tree: _Tree) -> ProjectCommand | None:
    file = tree.has("tests/test_*.py", "test/test_*.py", "test_*.py")
    argv = ("python3", "-m", "unittest", "discover", "-s", file.rpartition("/")[0] or ".")

    return ProjectCommand(argv=argv, source=file) if file else None


def _python_lint(tree: _Tree) -> ProjectCommand | None:
    prefix, configured = _python_prefix(tree), tree.table("pyproject.toml", "tool")
    tools = (
        ("ruff check .", "pyproject.toml, tool.ruff", "ruff" in configured),
        ("ruff check .", "ruff.toml", bool(tree.has("ruff.toml", ".ruff.toml"))),
        ("flake8", ".flake8", bool(tree.has(".flake8"))),
        ("flake8", "setup.cfg, flake8", tree.finds("setup.cfg", r"^\[flake8\]")),
        ("flake8", "tox.ini, flake8", tree.finds("tox.ini", r"^\[flake8\]")),
        ("pylint --recursive=y .", "pyproject.toml, tool.pylint", "pylint" in configured),
        ("black --check .", "pyproject.toml, tool.black", "black" in configured),
    )

    return next(
        (ProjectCommand(argv=(*prefix, *argv.split()), source=why) for argv, why, is_used in tools if is_used), None
    )


# --- JavaScript ------------------------------------------------------------------------------------------------

#: Lock file -> the package manager, and how it sets a checkout up.
_NODE_MANAGERS = (
    ("pnpm-lock.yaml", "pnpm", "pnpm install --frozen-lockfile"),
    ("yarn.lock", "yarn", "yarn install --frozen-lockfile"),
    ("bun.lock", "bun", "bun install --frozen-lockfile"),
    ("bun.lockb", "bun", "bun install --frozen-lockfile"),
    ("package-lock.json", "npm", "npm ci"),
    ("npm-shrinkwrap.json", "npm", "npm ci"),
)
#: What npm writes into a package.json for tests that there are not.
_NO_TEST = "no test specified"


def _node_script(*names: str) -> _Find:
    """Return what finds the first of these scripts in package.json."""

    def find(tree: _Tree) -> ProjectCommand | None:
        scripts = tree.table("package.json", "scripts")
        manager = next((program for lock, program, _ in _NODE_MANAGERS if tree.has(lock)), "npm")
        for name in names:
            text = scripts.get(name)
            if isinstance(text, str) and text.strip() and _NO_TEST not in text:
                return ProjectCommand(argv=(manager, "run", name), source=f"package.json, scripts.{name}")

        return None

    return find


# --- others ----------------------------------------------------------------------------------------------------


def _ruby_test(tree: _Tree) -> ProjectCommand | None:
    if tree.has(".rspec", "spec/"):
        return ProjectCommand(argv=("bundle", "exec", "rspec"), source=tree.has(".rspec", "spec/"))
    if tree.has("Rakefile") and tree.has("test/"):
        return ProjectCommand(argv=("bundle", "exec", "rake", "test"), source="Rakefile")

    return None


def _composer_script(name: str) -> _Find:
    def find(tree: _Tree) -> ProjectCommand | None:
        is_there = name in tree.table("composer.json", "scripts")

        source = f"composer.json, scripts.{name}"

        return ProjectCommand(argv=("composer", "run", name), source=source) if is_there else None

    return find


def _dart(tool: str) -> _Find:
    def find(tree: _Tree) -> ProjectCommand | None:
        program = "flutter" if tree.finds("pubspec.yaml", r"^\s+sdk:\s*flutter") else "dart"

        return ProjectCommand(argv=(program, tool), source="pubspec.yaml")

    return find


#: Every kind that is known; where several fit, the commands of the first are taken.
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
        test=_either(
            _pytest,
            _when("tox", "tox.ini"),
            _when("nox", "noxfile.py"),
            _when("python3 manage.py test", "manage.py"),
            _unittest,
        ),
        lint=_python_lint,
        setup=_either(*(_when(setup, lock) for lock, _, setup in _PYTHON_MANAGERS)),
    ),
    _Kind(
        language="JavaScript",
        signs=("package.json",),
        test=_node_script("test", "test:unit"),
        lint=_node_script("lint", "check"),
        setup=_either(*(_when(setup, lock) for lock, _, setup in _NODE_MANAGERS)),
    ),
    _Kind(
        language="Deno",
        signs=("deno.json", "deno.jsonc"),
        test=_when("deno test", "deno.json", "deno.jsonc"),
        lint=_when("deno lint", "deno.json", "deno.jsonc"),
    ),
    _Kind(
        language="Go",
        signs=("go.mod",),
        test=_when("go test ./...", "go.mod"),
        lint=_either(
            _when("golangci-lint run", ".golangci.yml", ".golangci.yaml", ".golangci.toml", ".golangci.json"),
            _when("go vet ./...", "go.mod"),
        ),
    ),
    _Kind(
        language="Rust",
        signs=("Cargo.toml",),
        test=_when("cargo test", "Cargo.toml"),
        lint=_when("cargo clippy --all-targets -- -D warnings", "Cargo.toml"),
    ),
    _Kind(
        language="Java",
        signs=("pom.xml",),
        test=_either(_when("./mvnw --batch-mode test", "mvnw"), _when("mvn --batch-mode test", "pom.xml")),
    ),
    _Kind(
        language="Java or Kotlin",
        signs=("build.gradle", "build.gradle.kts"),
        test=_either(_when("./gradlew test", "gradlew"), _when("gradle test", "build.gradle", "build.gradle.kts")),
    ),
    _Kind(language="Scala", signs=("build.sbt",), test=_when("sbt test", "build.sbt")),
    _Kind(
        language=".NET",
        signs=("*.sln", "*.slnx", "*.csproj", "*.fsproj"),
        test=_when("dotnet test", "*.sln", "*.slnx", "*.csproj", "*.fsproj"),
        lint=_when("dotnet format --verify-no-changes", ".editorconfig"),
    ),
    _Kind(
        language="Ruby",
        signs=("Gemfile",),
        test=_ruby_test,
        lint=_when("bundle exec rubocop", ".rubocop.yml"),
        setup=_when("bundle install", "Gemfile.lock"),
    ),
    _Kind(
        language="PHP",
        signs=("composer.json",),
        test=_either(_composer_script("test"), _when("vendor/bin/phpunit", "phpunit.xml", "phpunit.xml.dist")),
        lint=_composer_script("lint"),
        setup=_when("composer install --no-interaction", "composer.lock"),
    ),
    _Kind(
        language="Elixir",
        signs=("mix.exs",),
        test=_when("mix test", "mix.exs"),
        lint=_when("mix format --check-formatted", ".formatter.exs"),
        setup=_when("mix deps.get", "mix.lock"),
    ),
    _Kind(language="Swift", signs=("Package.swift",), test=_when("swift test", "Package.swift")),
    _Kind(language="Dart", signs=("pubspec.yaml",), test=_dart("test"), lint=_dart("analyze")),
    _Kind(language="C or C++", signs=("CMakeLists.txt", "meson.build", "configure.ac", "*.c", "*.cpp")),
)
#: What may be used with any language.
_ANY = _Kind(language="", signs=(), lint=_when("pre-commit run --all-files", ".pre-commit-config.yaml"))


# --- the `adw.toml` that a repository begins with, and the lines of its `.gitignore` -------------------------------
#
# What was not found is left as a comment that says how to write it.


#: Where both state and worktrees are, when the repository has a directory of one of these names itself.
OWN_FOLDER = ".adw"

_HEAD = """\
# Settings of adw for this repository. What does not stand here has its default: `adw config` shows all that is in force
# and where it comes from. Tokens never stand here: they come from the environment, so that they are never committed.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What is known about a repository."""

    project: Project = field(default_factory=Project)
    repository: str = ""  #: owner/name on GitHub
    repository_source: str = ""
    remote: str = "origin"  #: where branches are pushed to
    agent: str = "claude"
    agents: tuple[str, ...] = ()  #: those that are installed
    folders: tuple[str, ...] = ("state", "trees")  #: where adw keeps what it makes, relative to the home


def ignored_lines(found: Findings) -> tuple[str, ...]:
    """Return what `.gitignore` has to say for adw: its directories, and the file with ports that worktrees get."""
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
