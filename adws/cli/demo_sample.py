"""
The sample of `adw demo`: a repository with a bare remote and an issue, and what works on it.

Nothing but its own directory is touched, and nothing of the person's settings leads elsewhere: commands on the sample
get no variable that is a setting.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adws import config
from adws.adw_modules import toml_text
from adws.adw_modules.errors import AdwError, GitError, UsageError
from adws.sample import agent, texts

if TYPE_CHECKING:
    from adws.adw_modules.local_forge import LocalForge
    from adws.app import App

#: What is not committed and belongs to the sample: the agent's starter, and the marks of a stop in the middle.
_FOLDER = ".git/adw-demo"
_BRANCH = "main"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A sample that was made."""

    home: Path
    issue: int

    @property
    def half_way(self) -> Path:
        """The file that the agent writes when it has stopped in the middle; its process is in it."""
        return self.home / _FOLDER / "half-way"

    def open(self) -> App:
        """Return the parts of the sample, to be used with `with`."""
        from adws.app import open_app  # noqa: PLC0415 - `adw demo --help` must start without it

        settings = config.load(env={}, cwd=self.home, overrides={"home": str(self.home)})

        return open_app(settings)


def check_git() -> None:
    """Raise GitError when there is no git to work with."""
    if shutil.which("git", path=config.process_environment().get("PATH", "")) is None:
        raise GitError("the demo needs git: install it, and type adw demo again")


def choose_place(directory: str | None) -> Path:
    """Return the empty directory to make the sample in; raise UsageError when the one that is asked for is taken."""
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="adw-demo-")).resolve()
    place = Path(directory).absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        is_taken = any(place.iterdir())
    except OSError as exc:
        raise UsageError(
            f"the sample cannot be made in {place}: {exc.strerror or exc}; name another directory"
        ) from exc
    if is_taken:
        raise UsageError(f"{place} is not empty, and nothing is overwritten: name a directory that does not exist yet")

    return place.resolve()


def make(place: Path, *, pace_seconds: float, stops_half_way: bool) -> Sample:
    """Make the sample in *place*; its agent takes *pace_seconds* for an answer, and may stop in the middle of build."""
    from adws.adw_modules.resources.git import GitCommands  # noqa: PLC0415 - GitPython takes its time to import

    git = GitCommands(place, author=texts.AUTHOR)
    git.run("init", "--quiet", "--initial-branch", _BRANCH)
    _write_files(place, pace_seconds, stops_half_way=stops_half_way)
    git.run("add", ".")
    git.run("commit", "--quiet", "--message", "A sample")
    sample = Sample(home=place, issue=0)
    with sample.open() as app:
        forge = _local(app)
        git.run("remote", "add", "origin", forge.remote_url())
        git.run("push", "--quiet", "origin", _BRANCH)
        issue = forge.create_issue(texts.ISSUE_TITLE, texts.ISSUE_BODY, labels=("adw",), author="ada")

    return Sample(home=place, issue=issue.number)


def remove(sample: Sample) -> None:
    """Delete the sample with all that is in it."""
    try:
        shutil.rmtree(sample.home)
    except OSError as exc:
        raise AdwError(f"{sample.home} could not be deleted whole: {exc.strerror or exc}; delete the rest") from exc


def environment() -> Mapping[str, str]:
    """Return our environment without anything that is a setting of adw, for commands on the sample."""
    given = config.process_environment()

    return {name: value for name, value in given.items() if name not in _leading_elsewhere(given)}


def misleading_variables() -> tuple[str, ...]:
    """Return the variables that are set and that would lead commands on the sample elsewhere."""
    given = config.process_environment()
    harmless = {"ADW_HOME", *(name for one in config.SETTINGS if one.secret for name in (one.env, *one.aliases))}

    return tuple(sorted(name for name in _leading_elsewhere(given) if given[name] and name not in harmless))


def adw_command() -> str:
    """Return how the person calls adw, for a shell."""
    # Beside the interpreter, when it was called as a module.
    called = next((path for path in (Path(sys.argv[0]), Path(sys.executable).with_name("adw")) if _is_adw(path)), None)
    if called is None:
        return f"{shlex.quote(sys.executable)} -m adws.cli"
    found = shutil.which("adw", path=config.process_environment().get("PATH", ""))

    return "adw" if found and Path(found).samefile(called) else shlex.quote(str(called.absolute()))


def _is_adw(path: Path) -> bool:
    return path.name == "adw" and path.is_file()


def _leading_elsewhere(given: Mapping[str, str]) -> frozenset[str]:
    settings = {name for one in config.SETTINGS for name in (one.env, *one.aliases)}

    return frozenset(
        name
        for name in given
        if name in settings or (name.startswith("ADW_") and not name.startswith(config.RESERVED_PREFIXES))
    )


def _write_files(place: Path, pace_seconds: float, *, stops_half_way: bool) -> None:
    folder = place / _FOLDER
    folder.mkdir(parents=True)
    starter = folder / "agent"
    # Isolated and without site-packages: it starts at once, and nothing of the person's Python changes it.
    words = [sys.executable, "-I", "-S", str(agent.__file__), str(folder), f"{pace_seconds:g}"]
    starter.write_text(texts.AGENT_STARTER.format(arguments=shlex.join(words)), encoding="utf-8")
    starter.chmod(0o755)
    if stops_half_way:
        (folder / "stop-half-way").touch()
    adw_toml = texts.ADW_TOML.format(agent=toml_text.quoted(str(starter)), python=toml_text.quoted(sys.executable))
    for name, text in (
        ("greet.py", texts.GREET),
        ("test_greet.py", texts.TEST_GREET),
        (".gitignore", texts.IGNORED),
        ("adw.toml", adw_toml),
    ):
        (place / name).write_text(text, encoding="utf-8")


def _local(app: App) -> LocalForge:
    from adws.adw_modules.local_forge import LocalForge  # noqa: PLC0415 - `adw demo --help` must start without it

    if not isinstance(app.forge, LocalForge):
        raise AdwError("the sample has no local forge: its adw.toml was changed meanwhile")

    return app.forge
