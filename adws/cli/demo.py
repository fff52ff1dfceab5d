"""`adw demo`: an issue becomes a pull request on this machine; everything but the coding agent is real."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import AdwError, GitError, UsageError
from adws.adw_modules.identifiers import span
from adws.adw_modules.process import run as process_run
from adws.adw_modules.process import tree
from adws.adw_modules.process.run import ChildProcess, WatchedCommand
from adws.adw_modules.reports.timeline import Timeline, timeline
from adws.cli import main, output
from adws.config import load as config_load
from adws.config import settings as config_settings
from adws.config import toml_file
from adws.sample import agent, texts

if TYPE_CHECKING:
    from adws.app import Home


# --- the sample: a repository with a bare remote and an issue --------------------------------------------------
#
# Only its own directory is touched. The person's settings do not apply: commands on the sample get no variable that is
# a setting.


#: Uncommitted files of the sample: the agent's starter, and the marks of a stop in the middle.
_FOLDER = ".git/adw-demo"
_BRANCH = "main"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A sample repository."""

    home: Path
    issue: int

    @property
    def half_way(self) -> Path:
        """The file that the agent writes when it has stopped in the middle; it holds the agent's pid."""
        return self.home / _FOLDER / "half-way"

    @property
    def adw(self) -> str:
        """The beginning of every command on the sample, for a shell."""
        return f"{adw_command()} --home {shlex.quote(str(self.home))}"


def open_sample(place: Path) -> Home:
    """Return the home of the sample in *place* as a context manager."""
    from adws.app import open_home

    return open_home(config_load.load(env={}, cwd=place, overrides={"home": str(place)}))


def choose_place(directory: str | None) -> Path:
    """Return an empty directory for the sample; raise UsageError if *directory* is not empty."""
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
    """Create the sample in *place*; its agent takes *pace_seconds* per answer, and may stop in the middle of build."""
    from adws.adw_modules.forge.local import LocalForge
    from adws.adw_modules.git.git import GitCommands

    git = GitCommands(place, author=texts.AUTHOR)
    git.plain("init", "--quiet", "--initial-branch", _BRANCH)
    folder = place / _FOLDER
    folder.mkdir(parents=True)
    starter = folder / "agent"
    # Isolated and without site-packages: it starts fast, and the person's Python set-up does not affect it.
    words = [sys.executable, "-I", "-S", str(agent.__file__), str(folder), f"{pace_seconds:g}"]
    starter.write_text(texts.AGENT_STARTER.format(arguments=shlex.join(words)), encoding="utf-8")
    starter.chmod(0o755)
    if stops_half_way:
        (folder / "stop-half-way").touch()
    adw_toml = texts.ADW_TOML.format(
        agent=toml_file.quoted(f"claude={starter}"),
        python=toml_file.quoted(sys.executable),
        folder=toml_file.quoted(str(folder)),
    )
    for name, text in (
        ("greet.py", texts.GREET),
        ("test_greet.py", texts.TEST_GREET),
        (".gitignore", texts.IGNORED),
        ("adw.toml", adw_toml),
    ):
        (place / name).write_text(text, encoding="utf-8")
    git.plain("add", ".")
    git.plain("commit", "--quiet", "--message", "A sample")

    with open_sample(place) as app:
        if not isinstance(app.forge, LocalForge):
            raise AdwError("the sample has no local forge: its adw.toml was changed meanwhile")
        url = app.forge.remote_url()
        git.plain("remote", "add", "origin", url)
        git.ask_remote("push", "--quiet", url, f"refs/heads/{_BRANCH}:refs/heads/{_BRANCH}", url=url)
        issue = app.forge.create_issue(texts.ISSUE_TITLE, texts.ISSUE_BODY, labels=("adw",), author="ada")

    return Sample(home=place, issue=issue.number)


def environment() -> Mapping[str, str]:
    """Return our environment without settings of adw, for commands on the sample."""
    given = config_load.process_environment()

    return {name: value for name, value in given.items() if name not in _leading_elsewhere(given)}


def misleading_variables() -> list[str]:
    """Return the set variables that would misdirect commands that a person types on the sample."""
    given = config_load.process_environment()
    secrets = {name for one in config_settings.SETTINGS if one.secret for name in (one.env, *one.aliases)}
    harmless = {"ADW_HOME", *secrets}

    return sorted(name for name in _leading_elsewhere(given) if given[name] and name not in harmless)


def _leading_elsewhere(given: Mapping[str, str]) -> set[str]:
    settings = {name for one in config_settings.SETTINGS for name in (one.env, *one.aliases)}
    ours = {name for name in given if name.startswith("ADW_")}

    return (settings & given.keys()) | {name for name in ours if not name.startswith(config_settings.RESERVED_PREFIXES)}


def adw_command() -> str:
    """Return the command with which the person calls adw, for a shell."""
    # If adw was called as a module, the script is beside the interpreter.
    places = (Path(sys.argv[0]), Path(sys.executable).with_name("adw"))
    called = next((path for path in places if path.name == "adw" and path.is_file()), None)
    if called is None:
        return f"{shlex.quote(sys.executable)} -m adws.cli"
    found = shutil.which("adw")

    return "adw" if found and Path(found).samefile(called) else shlex.quote(str(called.absolute()))


# --- the dashboard of the sample: a server that ends with `adw demo`, opened in the browser --------------------


@contextmanager
def _dashboard(sample: Sample, tell: Callable[[str], None]) -> Iterator[ChildProcess]:
    """Serve the dashboard of *sample* inside the block, at any free port, and open it in a browser."""
    words = ("--home", str(sample.home), "serve", "--host", "127.0.0.1", "--port", "0", "--workers", "0", "--json")
    argv = [sys.executable, "-m", "adws.cli.worker", *words]
    server = ChildProcess(argv, env=environment(), cwd=sample.home, is_heard=True)
    try:
        try:
            told = json.loads(server.first_line())
            address, login = str(told["address"]), str(told["login"])
        except (ValueError, KeyError, TypeError) as exc:
            raise AdwError("adw serve did not start: what it said is above") from exc
        if process_run.open_page(login):
            tell(f"The dashboard is open in your browser: {address}")
            tell(f"A link for another one: {sample.adw} dashboard")
        else:
            tell("No browser could be opened here. This link opens the dashboard, once:")
            tell(f"  {login}")
        yield server
    finally:
        server.end()


def _serve_until_interrupted(server: ChildProcess, tell: Callable[[str], None]) -> None:
    """Wait until Ctrl-C; raise AdwError if the server ends by itself."""
    tell("\nThe dashboard is served until Ctrl-C.")
    with suppress(KeyboardInterrupt):
        while server.exit_code() is None:
            SystemClock().sleep(_SERVER_POLL_SECONDS)
        raise AdwError("adw serve ended: what it said is above")


# --- the timeline of a workflow as bars of text ----------------------------------------------------------------


#: Width of the bars in columns.
WIDTH = 48
#: Result of an attempt -> the character of its bar.
_MARKS = {"succeeded": "#", "failed": "x", "interrupted": "!", "running": "."}
_ON_ORDER = "-"
_LEGEND = {"x": "x failed", "!": "! cut off", _ON_ORDER: "- ended on order"}


def drawn(line: Timeline) -> list[str]:
    """Return a line for each phase with attempts: the attempts at their place in time, and their duration."""
    tried = {lane.name: bars for lane in line.lanes if (bars := [bar for bar in lane.bars if bar.attempt])}
    width = max(map(len, tried), default=0)
    lines, seen = [], set()
    for name, bars in tried.items():
        columns = [" "] * WIDTH
        # Failures are drawn last, so that they show if two bars share a column.
        for bar in sorted(bars, key=lambda bar: bar.kind != "succeeded"):
            mark = _MARKS.get(bar.kind, _ON_ORDER)
            first, last = (int((at - line.start).total_seconds() / line.seconds * WIDTH) for at in (bar.start, bar.end))
            for column in range(min(first, WIDTH - 1), min(last, WIDTH - 1) + 1):
                columns[column] = mark
            seen.add(mark)
        count = f", {len(bars)} attempts" if len(bars) > 1 else ""
        took = span(sum(bar.seconds for bar in bars))
        lines.append(f"{name:<{width}}  |{''.join(columns)}|  {took}{count}")
    legend = ", ".join(text for mark, text in _LEGEND.items() if mark in seen)

    return [*lines, f"{'':<{width}}  {span(line.seconds)} in all{f'; {legend}' if legend else ''}"]


# --- the acts of the demo: each is a command that a person could type, run as its own process ------------------


#: Seconds between two checks whether the agent has stopped half way, and whether the server still runs.
_AGENT_POLL_SECONDS, _SERVER_POLL_SECONDS = 0.02, 0.2
#: Seconds per answer of the scripted agent, normally and with the dashboard open.
PACE_SECONDS, WATCHED_PACE_SECONDS = 0.2, 1.0
EXIT_LEFT_OVER = 1


@click.command()
@click.option("--directory", metavar="DIR", help="Make the sample there, in a new or empty directory.")
@click.option(
    "--crash", is_flag=True, help="Kill the worker with SIGKILL in the middle of a phase, and resume the work."
)
@click.option("--rollback", is_flag=True, help="Undo all of it at the end, and show that nothing is left.")
@click.option("--dashboard", is_flag=True, help="Serve the dashboard on it, open it in the browser; ends with Ctrl-C.")
@click.option("--keep", is_flag=True, help="Keep the sample after --rollback; without --rollback it is kept anyway.")
@output.json_option
def demo(*, directory: str | None, crash: bool, rollback: bool, dashboard: bool, keep: bool, as_json: bool) -> int:
    """
    Carry a sample issue to a pull request on this machine, without an account or a key.

    Makes a sample repository with a bare remote and an issue, and runs the workflow sdlc on it. Engine, git, worktree,
    ports and pull request are real; the coding agent is a script. One phase fails once and is retried.
    """
    if main.given_home() is not None:
        raise UsageError("adw demo makes a home of its own: use adw demo --directory DIR to say where")
    if dashboard and rollback and not keep:
        raise UsageError("--dashboard shows what --rollback deletes at the end: add --keep, or use one of them")
    if shutil.which("git") is None:
        raise GitError("the demo needs git: install it, and type adw demo again")

    def tell(text: str) -> None:
        """Show text on standard output, or with --json on standard error."""
        if not as_json:
            output.emit(None, text, as_json=False)
            return
        for line in text.split("\n"):
            output.say(line)

    place = choose_place(directory)
    try:
        pace = WATCHED_PACE_SECONDS if dashboard else PACE_SECONDS
        sample = make(place, pace_seconds=pace, stops_half_way=crash)
        tell(f"A sample repository with issue #{sample.issue}, {texts.ISSUE_TITLE}: {sample.home}")
        tell("Its agent is played by a script; engine, git, worktree, ports and pull request are real.")
        with ExitStack() as stack:
            server = stack.enter_context(_dashboard(sample, tell)) if dashboard else None
            with open_sample(place) as app:
                acts = Acts(sample, app, tell=tell, is_quiet=as_json)
                acts.run(crash=crash)
                number = acts.show_pull_request()
                adw_id = acts.adw_id()
                tell("\nTimeline\n")
                for line in drawn(timeline(app.load(adw_id), now=app.clock.now())):
                    tell(line)
                left = acts.roll_back() if rollback else {}
            is_kept = keep or not rollback or any(left.values())
            data: dict[str, output.Printable] = {"home": str(place), "adw_id": adw_id, "pull_request": number}
            if not rollback:
                data["next"] = _tell_what_next(sample, adw_id, tell)
            else:
                data |= {"left": {name.replace(" ", "_"): things for name, things in left.items()}, "kept": is_kept}
                _show_left_overs(sample, left, adw_id, tell, is_kept=is_kept)
            if as_json:
                output.emit(data, "", as_json=True)
            if server is not None:
                _serve_until_interrupted(server, tell)
    except (AdwError, KeyboardInterrupt):
        # Whatever happens, tell the person where the sample is.
        home = shlex.quote(str(place))
        tell(f"\nThe sample is kept in {place}. Commands on it begin with: {adw_command()} --home {home}")
        raise

    return EXIT_LEFT_OVER if any(left.values()) else main.EXIT_OK


class Acts:
    """The acts on one sample; *tell* shows text, *is_quiet* sends the commands' output to standard error."""

    def __init__(self, sample: Sample, app: Home, *, tell: Callable[[str], None], is_quiet: bool) -> None:
        self._sample = sample
        self._app = app
        self._tell = tell
        self._is_quiet = is_quiet

    def type(self, *words: str) -> int:
        """Run an adw command on the sample, visibly, and return its exit code."""
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

    def adw_id(self) -> str:
        """Return the id of the sample's only workflow."""
        result = tuple(self._app.store.ids())
        if len(result) != 1:
            raise AdwError(f"the sample has {len(result)} workflows and should have one: what was done to it is above")

        return result[0]

    def run(self, *, crash: bool) -> None:
        """Run the workflow for the issue; raise AdwError if it fails."""
        code = self._run_and_crash() if crash else self.type("run", str(self._sample.issue))
        if code != main.EXIT_OK:
            raise AdwError(f"the sample was not carried through (exit code {code}): what adw said is above")

    def _run_and_crash(self) -> int:
        """Start the workflow, kill its process in the middle of a phase, and resume."""
        command = self._start("run", str(self._sample.issue))
        while not self._sample.half_way.exists():
            if command.exit_code() is not None:
                raise AdwError("adw run ended before it could be killed: what it said is above")
            self._app.clock.sleep(_AGENT_POLL_SECONDS)
        command.kill()
        output.restore_terminal()
        adw_id = self.adw_id()
        agent_pid = self._agent_pid(adw_id)
        self._tell(f"\n$ kill -9 {command.pid}")
        self._tell("adw run is dead, in the middle of build. Nobody told it to end, and nothing was tidied up:")
        self._tell(f"its agent, process {agent_pid}, {'still runs' if self._runs(agent_pid) else 'is gone too'}.")
        self.type("status", adw_id)
        code = self.type("resume", adw_id)
        if code == 0 and self._runs(agent_pid):
            raise AdwError(f"process {agent_pid} of the attempt that was cut off still runs")
        self._tell(f"The attempt that was cut off is counted; process {agent_pid} was ended before the work went on.")

        return code

    def _agent_pid(self, adw_id: str) -> int:
        """Return the recorded pid of the interrupted attempt; inside its sandbox the pid may differ."""
        attempts = [one for phase in self._app.load(adw_id).phases for one in phase.attempts]
        record = tree.recorded(attempts[-1].process or {})

        return 0 if record is None else record.identity.pid

    def _runs(self, pid: int) -> bool:
        info = self._app.processes.stat(pid)

        return info is not None and not info.is_zombie

    def show_pull_request(self) -> int:
        """Show the pull request as reviewers see it, with text and diff; return its number."""
        from adws.adw_modules.git.git import GitCommands

        number = self._app.load(self.adw_id()).pr_number
        if number is None:
            raise AdwError("the workflow has put up no pull request: what it said is above")
        result = self._app.forge.pull_request(number)
        remote = self._app.forge.remote_url()
        diff = GitCommands(self._sample.home).plain(
            f"--git-dir={remote}", "diff", "--stat", "--patch", f"{result.base}...{result.head}"
        )
        self._tell(f"\nPull request #{number} ({'draft' if result.is_draft else result.state}): {result.title}\n")
        self._tell(result.body)
        self._tell(f"\n{diff.text.rstrip()}")

        return number

    def roll_back(self) -> dict[str, list[str]]:
        """Roll the workflow back; return what is left of every kind of resource that a workflow creates."""
        app, adw_id = self._app, self.adw_id()
        if self.type("rollback", adw_id, "--reason", "the demo is over") != main.EXIT_OK:
            raise AdwError("the sample could not be rolled back: what adw said is above")
        seen = app.inventory.look()
        branch = app.load(adw_id).branch_name or ""
        default = f"refs/heads/{app.git.default_branch()}"
        local, remote = app.git.refs(), app.git.remote_refs("refs/heads/*")
        branches = [
            [name.removeprefix("refs/heads/") for name in refs if name.startswith("refs/heads/") and name != default]
            for refs in (local, remote)
        ]

        return {
            "worktrees": [str(tree.path) for tree in app.git.worktrees()],
            "local branches": branches[0],
            "branches at the remote": branches[1],
            "open pull requests": [f"#{one.number}" for one in app.forge.pull_requests_of(branch, state="open")],
            "ports": [str(row.port) for row in seen.ports],
            "processes": [str(one.stat.pid) for one in seen.processes],
            "locked issues": [f"#{lock.issue_number}" for lock in seen.locks],
        }


def _tell_what_next(sample: Sample, adw_id: str, tell: Callable[[str], None]) -> list[str]:
    """Show the commands to type next, and return them."""
    words = (f"status {adw_id}", f"logs {adw_id} --all", "admin verify", "serve", f"rollback {adw_id}")
    commands = [f"{sample.adw} {word}" for word in words]
    tell(f"\nThe sample is kept in {sample.home}. What to type next:")
    if misleading := misleading_variables():
        tell(f"  unset {' '.join(misleading)}    # they would lead elsewhere")
    for command in commands:
        tell(f"  {command}")
    tell("To work on a repository of your own: cd there, adw init, adw doctor.")
    tell(f"To delete the sample: rm -rf {shlex.quote(str(sample.home))}")

    return commands


def _show_left_overs(
    sample: Sample, left: dict[str, list[str]], adw_id: str, tell: Callable[[str], None], *, is_kept: bool
) -> None:
    """Show what the rollback left, and delete the sample unless it is kept."""
    tell(f"\nWhat is left of workflow {adw_id}, besides main:")
    for line in output.facts((name, ", ".join(things) or "none") for name, things in left.items()):
        tell(f"  {line}")
    if is_kept:
        tell(f"\nThe sample is kept in {sample.home}, and in it the commits of the workflow:")
        tell(f"  git -C {shlex.quote(str(sample.home))} log refs/adw/salvage/{adw_id}")
        return
    try:
        shutil.rmtree(sample.home)
    except OSError as exc:
        raise AdwError(f"{sample.home} could not be deleted whole: {exc.strerror or exc}; delete the rest") from exc
    tell(f"\nThe sample is deleted: {sample.home}")
