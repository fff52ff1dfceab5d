"""`adw demo`: an issue becomes a pull request on this machine, with everything real but the coding agent."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from adws.adw_modules import timestamps
from adws.adw_modules.errors import AdwError, GitError, UsageError
from adws.adw_modules.identifiers import JsonObject, span
from adws.adw_modules.process import run as process_run
from adws.adw_modules.process.run import ChildProcess, WatchedCommand
from adws.cli import main, output
from adws.config import load as config_load
from adws.config import settings as config_settings
from adws.config import toml_file
from adws.sample import agent, texts

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument
    from adws.adw_modules.forge.local import LocalForge
    from adws.adw_modules.forge.model import PullRequest
    from adws.adw_modules.interfaces import Clock
    from adws.app import Home


# What a rollback left of the sample's workflow: looked for, not remembered.


def look(app: Home, adw_id: str) -> dict[str, list[str]]:
    """Return every kind of thing that a workflow makes, and what is there of it."""
    seen = app.inventory.look()
    branch = app.store.load(adw_id).document.branch_name or ""
    default = app.git.default_branch()
    remote = app.remote_refs.all("refs/heads/*")

    return {
        "worktrees": [str(tree.path) for tree in app.git.worktrees()],
        "local branches": _branches(app.git.refs(), default),
        "branches at the remote": _branches(remote, default),
        "open pull requests": [f"#{one.number}" for one in app.forge.pull_requests_of(branch, state="open")],
        "ports": [str(row.port) for row in seen.ports],
        "processes": [str(one.stat.pid) for one in seen.processes],
        "locked issues": [f"#{lock.issue_number}" for lock in seen.locks],
    }


def proof_lines(found: dict[str, list[str]], adw_id: str) -> list[str]:
    """Return the same as text."""
    pairs = [(name, ", ".join(things) or "none") for name, things in found.items()]

    return [f"What is left of workflow {adw_id}, besides main:", *(f"  {line}" for line in output.facts(pairs))]


def to_json(found: dict[str, list[str]]) -> JsonObject:
    """Return the same for programs."""
    return {name.replace(" ", "_"): list(things) for name, things in found.items()}


def _branches(refs: Mapping[str, str], default: str) -> list[str]:
    heads = [name.removeprefix("refs/heads/") for name in refs if name.startswith("refs/heads/")]

    return [name for name in heads if name != default]


# The sample of `adw demo`: a repository with a bare remote and an issue, and what works on it.
#
# Nothing but its own directory is touched, and nothing of the person's settings leads elsewhere: commands on the sample
# get no variable that is a setting.


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

    def open(self) -> Home:
        """Return the parts of the sample, to be used with `with`."""
        from adws.app import open_home

        settings = config_load.load(env={}, cwd=self.home, overrides={"home": str(self.home)})

        return open_home(settings)


def check_git() -> None:
    """Raise GitError when there is no git to work with."""
    if shutil.which("git", path=config_load.process_environment().get("PATH", "")) is None:
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
    from adws.adw_modules.git.git import GitCommands

    git = GitCommands(place, author=texts.AUTHOR)
    git.plain("init", "--quiet", "--initial-branch", _BRANCH)
    _write_files(place, pace_seconds, stops_half_way=stops_half_way)
    git.plain("add", ".")
    git.plain("commit", "--quiet", "--message", "A sample")
    sample = Sample(home=place, issue=0)
    with sample.open() as app:
        forge = _local(app)
        url = forge.remote_url()
        git.plain("remote", "add", "origin", url)
        git.ask_remote("push", "--quiet", url, f"refs/heads/{_BRANCH}:refs/heads/{_BRANCH}", url=url)
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
    given = config_load.process_environment()

    return {name: value for name, value in given.items() if name not in _leading_elsewhere(given)}


def misleading_variables() -> tuple[str, ...]:
    """Return the variables that are set and that would lead commands on the sample elsewhere."""
    given = config_load.process_environment()
    harmless = {
        "ADW_HOME",
        *(name for one in config_settings.SETTINGS if one.secret for name in (one.env, *one.aliases)),
    }

    return tuple(sorted(name for name in _leading_elsewhere(given) if given[name] and name not in harmless))


def adw_command() -> str:
    """Return how the person calls adw, for a shell."""
    # Beside the interpreter, when it was called as a module.
    called = next((path for path in (Path(sys.argv[0]), Path(sys.executable).with_name("adw")) if _is_adw(path)), None)
    if called is None:
        return f"{shlex.quote(sys.executable)} -m adws.cli"
    result = shutil.which("adw", path=config_load.process_environment().get("PATH", ""))

    return "adw" if result and Path(result).samefile(called) else shlex.quote(str(called.absolute()))


def _is_adw(path: Path) -> bool:
    return path.name == "adw" and path.is_file()


def _leading_elsewhere(given: Mapping[str, str]) -> frozenset[str]:
    settings = {name for one in config_settings.SETTINGS for name in (one.env, *one.aliases)}

    return frozenset(
        name
        for name in given
        if name in settings or (name.startswith("ADW_") and not name.startswith(config_settings.RESERVED_PREFIXES))
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
    adw_toml = texts.ADW_TOML.format(agent=toml_file.quoted(str(starter)), python=toml_file.quoted(sys.executable))
    for name, text in (
        ("greet.py", texts.GREET),
        ("test_greet.py", texts.TEST_GREET),
        (".gitignore", texts.IGNORED),
        ("adw.toml", adw_toml),
    ):
        (place / name).write_text(text, encoding="utf-8")


def _local(app: Home) -> LocalForge:
    from adws.adw_modules.forge.local import LocalForge

    if not isinstance(app.forge, LocalForge):
        raise AdwError("the sample has no local forge: its adw.toml was changed meanwhile")

    return app.forge


# The dashboard of the sample, beside `adw demo`: a server that ends with it, opened in the person's browser.


#: Seconds between two checks whether the server still runs.
_LOOK_SECONDS_DEMO_DASHBOARD = 0.2


class Dashboard(NamedTuple):
    """A dashboard that is served."""

    address: str
    login: str  #: opens it, once
    server: ChildProcess

    def show(self, sample: Sample, tell: Callable[[str], None]) -> None:
        """Open it in a browser; where there is none, say where it is."""
        if process_run.open_page(self.login):
            again = f"{adw_command()} --home {shlex.quote(str(sample.home))} dashboard"
            tell(f"The dashboard is open in your browser: {self.address}")
            tell(f"A link for another one: {again}")
        else:
            tell("No browser could be opened here. This link opens the dashboard, once:")
            tell(f"  {self.login}")

    def wait(self, clock: Clock, tell: Callable[[str], None]) -> None:
        """Serve until Ctrl-C; raise AdwError when the server ends by itself."""
        tell("\nThe dashboard is served until Ctrl-C.")
        try:
            while self.server.exit_code() is None:
                clock.sleep(_LOOK_SECONDS_DEMO_DASHBOARD)
        except KeyboardInterrupt:
            return

        raise AdwError("adw serve ended: what it said is above")


@contextmanager
def serving(sample: Sample) -> Iterator[Dashboard]:
    """Serve the dashboard of *sample* beside us, at any port that is free."""
    words = ("--home", str(sample.home), "serve", "--host", "127.0.0.1", "--port", "0", "--workers", "0", "--json")
    server = ChildProcess(
        [sys.executable, "-m", "adws.cli.worker", *words],
        env=environment(),
        cwd=sample.home,
        is_heard=True,
    )
    try:
        yield _read(server.first_line(), server)
    finally:
        server.end()


def _read(line: str, server: ChildProcess) -> Dashboard:
    try:
        told = json.loads(line)
        return Dashboard(address=str(told["address"]), login=str(told["login"]), server=server)
    except (ValueError, KeyError, TypeError) as exc:
        raise AdwError("adw serve did not start: what it said is above") from exc


# When each phase of a workflow was worked on, as bars of text. Pure: takes what is stored.


#: Columns of the bars.
WIDTH = 48
#: How an attempt ended -> what its bar is drawn with.
_GOOD = "#"
_MARKS = {"succeeded": _GOOD, "failed": "x", "interrupted": "!", "suspended": "-", "running": "."}
_OTHER = "-"
_LEGEND = {"x": "x failed", "!": "! cut off", "-": "- ended on order"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    start: float  #: seconds since the workflow was made
    seconds: float
    mark: str


def lines(document: WorkflowDocument) -> list[str]:
    """Return one line for each phase that was begun: its attempts at their place in time, and how long they took."""
    begun = timestamps.parse(document.created_at)
    phases = {
        phase.name: [
            _bar(one, (timestamps.parse(one.started_at) - begun).total_seconds(), document) for one in phase.attempts
        ]
        for phase in document.phases
        if phase.attempts
    }
    bars = [bar for item in phases.values() for bar in item]
    if not bars:
        return []
    whole = max(*(bar.start + bar.seconds for bar in bars), 0.001)
    width = max(map(len, phases))
    drawn = [f"{name:<{width}}  |{_drawn(item, whole)}|  {_told(item)}".rstrip() for name, item in phases.items()]
    seen = {bar.mark for bar in bars}
    legend = ", ".join(text for mark, text in _LEGEND.items() if mark in seen)

    return [*drawn, f"{'':<{width}}  {span(whole)} in all{f'; {legend}' if legend else ''}"]


def _bar(attempt: AttemptRecord, start: float, document: WorkflowDocument) -> _Bar:
    end = timestamps.parse(attempt.ended_at or document.updated_at)
    seconds = (end - timestamps.parse(attempt.started_at)).total_seconds()

    return _Bar(start=start, seconds=max(seconds, 0.0), mark=_MARKS.get(attempt.status, _OTHER))


def _drawn(bars: list[_Bar], whole: float) -> str:
    columns = [" "] * WIDTH
    # What went wrong is drawn last: where two share a column, that is to be seen.
    for bar in sorted(bars, key=lambda bar: bar.mark != _GOOD):
        for column in _columns(bar, whole):
            columns[column] = bar.mark

    return "".join(columns)


def _columns(bar: _Bar, whole: float) -> Iterator[int]:
    first = min(int(bar.start / whole * WIDTH), WIDTH - 1)
    last = min(int((bar.start + bar.seconds) / whole * WIDTH), WIDTH - 1)
    yield from range(max(first, 0), max(last, first) + 1)


def _told(bars: list[_Bar]) -> str:
    count = f", {len(bars)} attempts" if len(bars) > 1 else ""

    return f"{span(sum(bar.seconds for bar in bars))}{count}"


# What `adw demo` shows, one act after the other: each is a command that a person could type, run as a process of its
# own.


#: Seconds between two checks whether the agent is half way.
_LOOK_SECONDS = 0.02


class Acts:
    """The acts on one sample; *tell* shows text, *is_quiet* sends the output of commands where errors go."""

    def __init__(self, sample: Sample, *, tell: Callable[[str], None], is_quiet: bool) -> None:
        self._sample = sample
        self._tell = tell
        self._is_quiet = is_quiet

    def type(self, *words: str) -> int:
        """Run an adw command on the sample, in front of the person, and return its exit code."""
        code = self._start(*words).wait()
        if code < 0:
            output.restore_terminal()

        return code

    def _start(self, *words: str) -> WatchedCommand:
        self._tell(f"\n$ adw {shlex.join(words)}")

        return WatchedCommand(
            [sys.executable, "-m", "adws.cli", "--home", str(self._sample.home), *words],
            env=environment(),
            cwd=self._sample.home,
            output_to_errors=self._is_quiet,
        )

    def run(self) -> int:
        """Carry the issue through the workflow."""
        return self.type("run", str(self._sample.issue))

    def run_and_crash(self, app: Home) -> int:
        """Carry the issue half of the way, kill that process in the middle of a phase, and go on."""
        command = self._start("run", str(self._sample.issue))
        while not self._sample.half_way.exists():
            if command.exit_code() is not None:
                raise AdwError("adw run ended before it could be killed: what it said is above")
            app.clock.sleep(_LOOK_SECONDS)
        command.kill()
        output.restore_terminal()
        agent = int(self._sample.half_way.read_text(encoding="ascii"))
        self._tell(f"\n$ kill -9 {command.pid}")
        self._tell("adw run is dead, in the middle of build. Nobody told it to end, and nothing was tidied up:")
        self._tell(f"its agent, process {agent}, {'still runs' if _runs(app, agent) else 'is gone too'}.")
        adw_id = the_workflow(app)
        self.type("explain", adw_id)
        code = self.type("resume", adw_id)
        if code == 0 and _runs(app, agent):
            raise AdwError(f"process {agent} of the attempt that was cut off still runs")
        self._tell(f"The attempt that was cut off is counted; process {agent} was ended before the work went on.")

        return code

    def show_pull_request(self, app: Home) -> PullRequest:
        """Show the pull request as its reviewers see it: text and diff."""
        from adws.adw_modules.git.git import GitCommands

        result = the_pull_request(app)
        remote = app.forge.remote_url()
        diff = GitCommands(self._sample.home).plain(
            f"--git-dir={remote}", "diff", "--stat", "--patch", f"{result.base}...{result.head}"
        )
        self._tell(
            f"\nPull request #{result.number} ({'draft' if result.is_draft else result.state}): {result.title}\n"
        )
        self._tell(result.body)
        self._tell(f"\n{diff.text.rstrip()}")

        return result

    def show_timeline(self, app: Home) -> None:
        """Show when each phase was worked on."""
        self._tell("\nTimeline\n")
        for line in lines(app.store.load(the_workflow(app)).document):
            self._tell(line)


def the_workflow(app: Home) -> str:
    """Return the id of the one workflow there is."""
    result = tuple(app.store.ids())
    if len(result) != 1:
        raise AdwError(f"the sample has {len(result)} workflows and should have one: what was done to it is above")

    return result[0]


def the_pull_request(app: Home) -> PullRequest:
    """Return the pull request of the one workflow there is."""
    number = app.store.load(the_workflow(app)).document.pr_number
    if number is None:
        raise AdwError("the workflow has put up no pull request: what it said is above")

    return app.forge.pull_request(number)


def next_commands(sample: Sample, adw_id: str) -> tuple[str, ...]:
    """Return what to type next, each ready for a shell."""
    adw = f"{adw_command()} --home {shlex.quote(str(sample.home))}"
    words = (f"status {adw_id}", f"logs {adw_id} --all", f"explain {adw_id}", "verify", "serve", f"rollback {adw_id}")

    return tuple(f"{adw} {word}" for word in words)


def tell_what_next(sample: Sample, commands: tuple[str, ...], tell: Callable[[str], None]) -> None:
    """Say what to type next."""
    tell(f"\nThe sample is kept in {sample.home}. What to type next:")
    misleading = misleading_variables()
    if misleading:
        tell(f"  unset {' '.join(misleading)}    # they would lead elsewhere")
    for command in commands:
        tell(f"  {command}")
    tell("To work on a repository of your own: cd there, adw init, adw doctor.")
    tell(f"To delete the sample: rm -rf {shlex.quote(str(sample.home))}")


def teller(*, as_json: bool) -> Callable[[str], None]:
    """Return what shows text: with JSON as output, where errors go."""
    return _say_lines if as_json else (lambda text: output.emit(None, text, as_json=False))


def _say_lines(text: str) -> None:
    for line in text.split("\n"):
        output.say(line)


def _runs(app: Home, pid: int) -> bool:
    info = app.processes.stat(pid)

    return info is not None and not info.is_zombie


EXIT_LEFT_OVER = 1
#: Seconds that the scripted agent takes for an answer, and when somebody watches on the dashboard.
PACE_SECONDS, WATCHED_PACE_SECONDS = 0.2, 1.0


class SampleResult(NamedTuple):
    """The result of the sample."""

    adw_id: str
    pull_request: int


@click.command()
@click.option("--directory", metavar="DIR", help="Make the sample there, in a new or empty directory.")
@click.option("--crash", is_flag=True, help="Kill the work with SIGKILL in the middle of a phase, and let it go on.")
@click.option("--rollback", is_flag=True, help="Undo all of it at the end, and show that nothing is left.")
@click.option("--dashboard", is_flag=True, help="Serve the dashboard on it, open it in the browser; ends with Ctrl-C.")
@click.option("--keep", is_flag=True, help="Keep the sample after --rollback; without --rollback it is kept anyway.")
@output.json_option
def demo(*, directory: str | None, crash: bool, rollback: bool, dashboard: bool, keep: bool, as_json: bool) -> int:
    """
    Carry a sample issue to a pull request on this machine, without an account or a key.

    Makes a sample repository with a bare remote and an issue, and runs the workflow sdlc on it. Engine, git, worktree,
    ports and pull request are real; the coding agent is a script. One phase fails once and is tried again.
    """
    if main.given_home() is not None:
        raise UsageError("adw demo makes a home of its own: use adw demo --directory DIR to say where")
    if dashboard and rollback and not keep:
        raise UsageError("--dashboard shows what --rollback deletes at the end: add --keep, or use one of them")
    check_git()
    tell = teller(as_json=as_json)
    place = choose_place(directory)
    with _told_where(place, tell):
        pace = WATCHED_PACE_SECONDS if dashboard else PACE_SECONDS
        sample = make(place, pace_seconds=pace, stops_half_way=crash)
        tell(f"A sample repository with issue #{sample.issue}, {texts.ISSUE_TITLE}: {sample.home}")
        tell("Its agent is played by a script; engine, git, worktree, ports and pull request are real.")
        acts = Acts(sample, tell=tell, is_quiet=as_json)
        with sample.open() as app, _dashboard(sample, tell, is_wanted=dashboard) as board:
            told = _carry(acts, app, crash=crash)
            result = _undo(acts, app, told) if rollback else None
            if board is not None:
                code = _end(sample, told, result, keep=True, as_json=as_json)
                board.wait(app.clock, tell)
                return code

        return _end(sample, told, result, keep=keep, as_json=as_json)


@contextmanager
def _dashboard(sample: Sample, tell: Callable[[str], None], *, is_wanted: bool) -> Iterator[Dashboard | None]:
    """Serve the dashboard inside the block, when it is wanted."""
    if not is_wanted:
        yield None
        return
    with serving(sample) as board:
        board.show(sample, tell)
        yield board


@contextmanager
def _told_where(place: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Whatever comes in between, the person is told where the sample is."""
    try:
        yield
    except (AdwError, KeyboardInterrupt):
        home = shlex.quote(str(place))
        tell(f"\nThe sample is kept in {place}. Commands on it begin with: {adw_command()} --home {home}")
        raise


def _carry(acts: Acts, app: Home, *, crash: bool) -> SampleResult:
    """Carry the issue through the workflow and show the result."""
    code = acts.run_and_crash(app) if crash else acts.run()
    if code != main.EXIT_OK:
        raise AdwError(f"the sample was not carried through (exit code {code}): what adw said is above")
    pull_request = acts.show_pull_request(app)
    acts.show_timeline(app)

    return SampleResult(adw_id=the_workflow(app), pull_request=pull_request.number)


def _undo(acts: Acts, app: Home, told: SampleResult) -> dict[str, list[str]]:
    """Roll the workflow back, and return what is left of it."""
    if acts.type("rollback", told.adw_id, "--reason", "the demo is over") != main.EXIT_OK:
        raise AdwError("the sample could not be rolled back: what adw said is above")

    return look(app, told.adw_id)


def _end(sample: Sample, told: SampleResult, found: dict[str, list[str]] | None, *, keep: bool, as_json: bool) -> int:
    """Say what is left and what to type next."""
    tell = teller(as_json=as_json)
    data: dict[str, output.Printable] = {"home": str(sample.home), **told._asdict()}
    if found is None:
        commands = next_commands(sample, told.adw_id)
        tell_what_next(sample, commands, tell)
        data["next"] = list(commands)
    else:
        is_kept = _show_left_overs(sample, found, told.adw_id, keep=keep, tell=tell)
        data |= {"left": to_json(found), "kept": is_kept}
    if as_json:
        output.emit(data, "", as_json=True)

    return EXIT_LEFT_OVER if found and any(found.values()) else main.EXIT_OK


def _show_left_overs(
    sample: Sample, found: dict[str, list[str]], adw_id: str, *, keep: bool, tell: Callable[[str], None]
) -> bool:
    """Show what a rollback left, and delete the sample unless somebody has to look at it; say whether it is kept."""
    tell("")
    for line in proof_lines(found, adw_id):
        tell(line)
    is_kept = keep or any(found.values())
    if is_kept:
        tell(f"\nThe sample is kept in {sample.home}, and in it the commits of the workflow:")
        tell(f"  git -C {shlex.quote(str(sample.home))} log refs/adw/salvage/{adw_id}")
    else:
        remove(sample)
        tell(f"\nThe sample is deleted: {sample.home}")

    return is_kept
