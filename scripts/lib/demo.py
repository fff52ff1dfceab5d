"""
An issue becomes a pull request on this machine: a sample repository, a bare remote, a local forge, plain commands.

Everything is the real thing but the coding agent, whose place scripted commands take. One phase fails once and is tried
again. The sample is made in a temporary directory and kept for the commands at the end. Nothing else is touched.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from adws import config
from adws.adw_modules.local_forge import LocalForge
from adws.app import open_app

ADW = Path(sys.executable).parent / "adw"

GREET = """\
def greet(name):
    return "Hello, " + name
"""

TEST_GREET = """\
from greet import greet

assert greet("Ada") == "Hello, Ada!", greet("Ada")
assert greet("") == "Hello, you!", greet("")
print("2 tests passed")
"""

#: What takes the place of the agent. Building needs two attempts, as agents often do.
ADW_TOML = '''\
[forge]
kind = "local"
dir = "forge"

[phases.plan]
shell = "mkdir -p specs && printf '%s\\n' 'Greet with an exclamation mark; nobody is greeted as you.' > specs/plan.md"
gates = [{{ artifact = "specs/plan.md" }}]

[phases.build]
shell = "{python} {builder}"
retry = {{ strategy = "fixed", base_seconds = 0.2 }}
gates = [{{ command = ["{python}", "test_greet.py"] }}]

[phases.lint]
command = ["{python}", "-m", "py_compile", "greet.py"]

[phases.test]
command = ["{python}", "test_greet.py"]

[phases.review]
shell = """printf %s '{{"success": true, "summary": "small, tested, as planned"}}' > "$ADW_RESULT_FILE""""
gate = "result"

[phases.document]
shell = "printf '%s\\n' '# greet' '' 'greet(name) says hello, with an exclamation mark.' > README.md"
'''

#: The builder forgets the empty name at first; its second attempt mends that.
BUILDER = """\
import os
from pathlib import Path

attempt = int(os.environ["ADW_ATTEMPT"])
name = "name" if attempt == 1 else '(name or "you")'
Path("greet.py").write_text(f'def greet(name):\\n    return "Hello, " + {name} + "!"\\n')
print(f"attempt {attempt}: wrote greet.py")
"""

ISSUE_TITLE = "Greet with an exclamation mark"
ISSUE_BODY = "greet() should say `Hello, Ada!`. Without a name it should say `Hello, you!`."


def main() -> int:
    if shutil.which("git") is None:
        print("the demo needs git: install it and run scripts/demo again", file=sys.stderr)
        return 1
    home = Path(tempfile.mkdtemp(prefix="adw-demo-"))
    number = make_sample(home)
    print(f"A sample repository with issue #{number}, {ISSUE_TITLE}: {home}")

    code = show(home, "run", str(number), must_work=False)
    if code != 0:
        return code
    adw_id = the_workflow(home)
    show(home, "status", adw_id)
    show(home, "events", adw_id)
    show_pull_request(home)
    say_what_next(home, adw_id)

    return 0


def make_sample(home: Path) -> int:
    """Make the repository, its remote and its issue, and return the issue's number."""
    git(home, "init", "--quiet", "--initial-branch", "main")
    builder = home / ".git" / "demo_builder.py"
    builder.write_text(BUILDER, encoding="utf-8")
    python = shlex.quote(sys.executable)
    (home / "greet.py").write_text(GREET, encoding="utf-8")
    (home / "test_greet.py").write_text(TEST_GREET, encoding="utf-8")
    (home / ".gitignore").write_text("state/\ntrees/\nforge/\n__pycache__/\n", encoding="utf-8")
    (home / "adw.toml").write_text(ADW_TOML.format(python=python, builder=shlex.quote(str(builder))), encoding="utf-8")
    git(home, "add", ".")
    git(home, "commit", "--quiet", "--message", "A sample")
    with open_app(config.load(env={}, cwd=home, overrides={"home": str(home)})) as app:
        forge = app.forge
        if not isinstance(forge, LocalForge):
            raise SystemExit("the sample should have a local forge")
        forge.prepare("main")
        git(home, "remote", "add", "origin", forge.remote_url())
        git(home, "push", "--quiet", "origin", "main")

        return forge.create_issue(ISSUE_TITLE, ISSUE_BODY, labels=("adw",), author="ada").number


def git(home: Path, *arguments: str) -> str:
    """Run git in the sample, as nobody in particular."""
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.invalid")
    done = subprocess.run(["git", *who, *arguments], cwd=home, check=True, capture_output=True, text=True)

    return done.stdout


def the_workflow(home: Path) -> str:
    """Return the id of the one workflow there is."""
    return next(path.parent.name for path in (home / "state").glob("*/adw_state.json"))


def show_pull_request(home: Path) -> None:
    """Show the pull request as its reviewers see it: text and diff."""
    with open_app(config.load(env={}, cwd=home, overrides={"home": str(home)})) as app:
        adw_id = the_workflow(home)
        found = app.forge.pull_request(app.store.load(adw_id).document.pr_number or 0) if app.forge else None
    if found is None:
        raise SystemExit("there is no pull request")
    print(f"\nPull request #{found.number} ({'draft' if found.is_draft else found.state}): {found.title}\n")
    print(found.body)
    git(home, "fetch", "--quiet", "origin", found.head)
    print()
    print(git(home, "diff", "--stat", "--patch", f"origin/{found.base}", "FETCH_HEAD"))


def show(home: Path, *command: str, must_work: bool = True) -> int:
    """Run an adw command as a person would."""
    print(f"\n$ adw {shlex.join(command)}", flush=True)

    return subprocess.run([str(ADW), "--home", str(home), *command], cwd=home, check=must_work).returncode


def say_what_next(home: Path, adw_id: str) -> None:
    adw = f"{shlex.quote(str(ADW))} --home {shlex.quote(str(home))}"
    print("The sample is kept. Look around:")
    for command in (f"state show {adw_id}", f"logs {adw_id} --all", f"explain {adw_id}", "verify"):
        print(f"  {adw} {command}")
    print(f"Undo all of it, and delete the sample:\n  {adw} rollback {adw_id}\n  rm -rf {shlex.quote(str(home))}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `scripts/demo | head` ends without a traceback
    sys.exit(main())
