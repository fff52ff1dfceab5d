"""
What `adw demo` shows, one act after the other: each is a command that a person could type, run as a process of its own.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from adws.adw_modules.child_process import WatchedCommand
from adws.adw_modules.errors import AdwError
from adws.cli import demo_sample, output, progress, timeline_text

if TYPE_CHECKING:
    from adws.adw_modules.forge import PullRequest
    from adws.app import App
    from adws.cli.demo_sample import Sample

#: Seconds between two looks at whether the agent is half way.
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
            progress.restore_terminal()

        return code

    def _start(self, *words: str) -> WatchedCommand:
        self._tell(f"\n$ adw {shlex.join(words)}")

        return WatchedCommand(
            [sys.executable, "-m", "adws.cli", "--home", str(self._sample.home), *words],
            env=demo_sample.environment(),
            cwd=self._sample.home,
            output_to_errors=self._is_quiet,
        )

    def run(self) -> int:
        """Carry the issue through the workflow."""
        return self.type("run", str(self._sample.issue))

    def run_and_crash(self, app: App) -> int:
        """Carry the issue half of the way, kill that process in the middle of a phase, and go on."""
        command = self._start("run", str(self._sample.issue))
        while not self._sample.half_way.exists():
            if command.exit_code() is not None:
                raise AdwError("adw run ended before it could be killed: what it said is above")
            app.clock.sleep(_LOOK_SECONDS)
        command.kill()
        progress.restore_terminal()
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

    def show_pull_request(self, app: App) -> PullRequest:
        """Show the pull request as its reviewers see it: text and diff."""
        from adws.adw_modules.resources.git import GitCommands  # noqa: PLC0415 - GitPython takes its time to import

        found = the_pull_request(app)
        remote = app.forge.remote_url()
        diff = GitCommands(self._sample.home).run(
            f"--git-dir={remote}", "diff", "--stat", "--patch", f"{found.base}...{found.head}"
        )
        self._tell(f"\nPull request #{found.number} ({'draft' if found.is_draft else found.state}): {found.title}\n")
        self._tell(found.body)
        self._tell(f"\n{diff.text.rstrip()}")

        return found

    def show_timeline(self, app: App) -> None:
        """Show when each phase was worked on."""
        self._tell("\nTimeline\n")
        for line in timeline_text.lines(app.store.load(the_workflow(app)).document):
            self._tell(line)


def the_workflow(app: App) -> str:
    """Return the id of the one workflow there is."""
    found = tuple(app.store.ids())
    if len(found) != 1:
        raise AdwError(f"the sample has {len(found)} workflows and should have one: what was done to it is above")

    return found[0]


def the_pull_request(app: App) -> PullRequest:
    """Return the pull request of the one workflow there is."""
    number = app.store.load(the_workflow(app)).document.pr_number
    if number is None:
        raise AdwError("the workflow has put up no pull request: what it said is above")

    return app.forge.pull_request(number)


def next_commands(sample: Sample, adw_id: str) -> tuple[str, ...]:
    """Return what to type next, each ready for a shell."""
    adw = f"{demo_sample.adw_command()} --home {shlex.quote(str(sample.home))}"
    words = (f"status {adw_id}", f"logs {adw_id} --all", f"explain {adw_id}", "verify", "serve", f"rollback {adw_id}")

    return tuple(f"{adw} {word}" for word in words)


def tell_what_next(sample: Sample, commands: tuple[str, ...], tell: Callable[[str], None]) -> None:
    """Say what to type next."""
    tell(f"\nThe sample is kept in {sample.home}. What to type next:")
    misleading = demo_sample.misleading_variables()
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


def _runs(app: App, pid: int) -> bool:
    found = app.processes.stat(pid)

    return found is not None and not found.is_zombie
