"""`adw demo`: an issue becomes a pull request on this machine, with everything real but the coding agent."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from adws.adw_modules.errors import AdwError, UsageError
from adws.cli import demo_acts, demo_dashboard, demo_proof, demo_sample, main, output
from adws.sample import texts

if TYPE_CHECKING:
    from adws.app import App
    from adws.cli.demo_dashboard import Dashboard
    from adws.cli.demo_sample import Sample

EXIT_LEFT_OVER = 1
#: Seconds that the scripted agent takes for an answer, and when somebody watches on the dashboard.
PACE_SECONDS, WATCHED_PACE_SECONDS = 0.2, 1.0


class Told(NamedTuple):
    """What came of the sample."""

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
    demo_sample.check_git()
    tell = demo_acts.teller(as_json=as_json)
    place = demo_sample.choose_place(directory)
    with _told_where(place, tell):
        pace = WATCHED_PACE_SECONDS if dashboard else PACE_SECONDS
        sample = demo_sample.make(place, pace_seconds=pace, stops_half_way=crash)
        tell(f"A sample repository with issue #{sample.issue}, {texts.ISSUE_TITLE}: {sample.home}")
        tell("Its agent is played by a script; engine, git, worktree, ports and pull request are real.")
        acts = demo_acts.Acts(sample, tell=tell, is_quiet=as_json)
        with sample.open() as app, _dashboard(sample, tell, is_wanted=dashboard) as board:
            told = _carry(acts, app, crash=crash)
            found = _undo(acts, app, told) if rollback else None
            if board is not None:
                code = _end(sample, told, found, keep=True, as_json=as_json)
                board.wait(app.clock, tell)
                return code

        return _end(sample, told, found, keep=keep, as_json=as_json)


@contextmanager
def _dashboard(sample: Sample, tell: Callable[[str], None], *, is_wanted: bool) -> Iterator[Dashboard | None]:
    """Serve the dashboard inside the block, when it is wanted."""
    if not is_wanted:
        yield None
        return
    with demo_dashboard.serving(sample) as board:
        board.show(sample, tell)
        yield board


@contextmanager
def _told_where(place: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Whatever comes in between, the person is told where the sample is."""
    try:
        yield
    except (AdwError, KeyboardInterrupt):
        home = shlex.quote(str(place))
        tell(f"\nThe sample is kept in {place}. Commands on it begin with: {demo_sample.adw_command()} --home {home}")
        raise


def _carry(acts: demo_acts.Acts, app: App, *, crash: bool) -> Told:
    """Carry the issue through the workflow and show what came of it."""
    code = acts.run_and_crash(app) if crash else acts.run()
    if code != main.EXIT_OK:
        raise AdwError(f"the sample was not carried through (exit code {code}): what adw said is above")
    pull_request = acts.show_pull_request(app)
    acts.show_timeline(app)

    return Told(adw_id=demo_acts.the_workflow(app), pull_request=pull_request.number)


def _undo(acts: demo_acts.Acts, app: App, told: Told) -> dict[str, list[str]]:
    """Roll the workflow back, and return what is left of it."""
    if acts.type("rollback", told.adw_id, "--reason", "the demo is over") != main.EXIT_OK:
        raise AdwError("the sample could not be rolled back: what adw said is above")

    return demo_proof.look(app, told.adw_id)


def _end(sample: Sample, told: Told, found: dict[str, list[str]] | None, *, keep: bool, as_json: bool) -> int:
    """Say what is left and what to type next."""
    tell = demo_acts.teller(as_json=as_json)
    data: dict[str, output.Printable] = {"home": str(sample.home), **told._asdict()}
    if found is None:
        commands = demo_acts.next_commands(sample, told.adw_id)
        demo_acts.tell_what_next(sample, commands, tell)
        data["next"] = list(commands)
    else:
        is_kept = _show_left_overs(sample, found, told.adw_id, keep=keep, tell=tell)
        data |= {"left": demo_proof.to_json(found), "kept": is_kept}
    if as_json:
        output.emit(data, "", as_json=True)

    return EXIT_LEFT_OVER if found and any(found.values()) else main.EXIT_OK


def _show_left_overs(
    sample: Sample, found: dict[str, list[str]], adw_id: str, *, keep: bool, tell: Callable[[str], None]
) -> bool:
    """Show what a rollback left, and delete the sample unless somebody has to look at it; say whether it is kept."""
    tell("")
    for line in demo_proof.lines(found, adw_id):
        tell(line)
    is_kept = keep or any(found.values())
    if is_kept:
        tell(f"\nThe sample is kept in {sample.home}, and in it the commits of the workflow:")
        tell(f"  git -C {shlex.quote(str(sample.home))} log refs/adw/salvage/{adw_id}")
    else:
        demo_sample.remove(sample)
        tell(f"\nThe sample is deleted: {sample.home}")

    return is_kept
