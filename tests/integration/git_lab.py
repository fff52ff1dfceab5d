"""Real git repositories for tests: a bare remote, a clone that is somebody's main checkout, and a look at all of it."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.git.git import GitCommands
from adws.adw_modules.git.repository import Repository
from adws.adw_modules.git.worktree import GitWorkplace
from tests import templates


def git(cwd: Path, *args: str) -> str:
    """Run plain git, as a person would."""
    done = subprocess.run(["git", *args], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {' '.join(args)}: {done.stderr}"

    return done.stdout.strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """A remote, a main checkout, and adw's hands on them."""

    remote: Path
    main: Path
    trees: Path
    repository: Repository
    workplace: GitWorkplace

    def add(self, adw_id: str = "1a2b3c4d", branch: str = "feature-issue-1-adw-1a2b3c4d-work"):
        """Make a worktree as a workflow does."""
        return self.repository.add_worktree(
            self.trees / adw_id, branch=branch, start=self.repository.fetch("main"), reason=f"adw:{adw_id}"
        )

    def main_checkout(self) -> tuple[object, ...]:
        """Return all of the main checkout that a person would miss: HEAD, index, files, and what git says of it."""
        files = sorted(p for p in self.main.rglob("*") if p.is_file() and ".git" not in p.parts)
        digest = [(str(p.relative_to(self.main)), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]
        hidden = ("HEAD", "index", "config", "info/exclude", "ORIG_HEAD", "FETCH_HEAD")
        state = [(name, _bytes(self.main / ".git" / name)) for name in hidden]

        return digest, state, git(self.main, "stash", "list")


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def make_lab(place: Path) -> Lab:
    """Return a lab below *place*; the main checkout has work in progress, staged and not."""
    place = place.resolve()
    # Beside the folders of other tests: made by the first of them, and gone with all of them.
    templates.copy_repositories(place.parent / "git-lab", place, _make_repositories)

    return hands_on(place / "main", place / "remote.git")


def _make_repositories(place: Path) -> None:
    remote, main, seed = place / "remote.git", place / "main", place / "seed"
    git(place, "init", "-q", "--bare", "--initial-branch=main", str(remote))
    git(place, "clone", "-q", f"file://{remote}", str(seed))
    git(seed, "checkout", "-q", "-b", "main")
    (seed / "app.py").write_text("print('one')\n")
    (seed / ".gitignore").write_text(".env\n.ports.env\ntrees/\n")
    git(seed, "add", "-A")
    git(seed, "commit", "-q", "-m", "Begin")
    git(seed, "push", "-q", "origin", "main")
    git(place, "clone", "-q", f"file://{remote}", str(main))
    (main / "app.py").write_text("print('in progress')\n")
    (main / "staged.txt").write_text("staged\n")
    git(main, "add", "staged.txt")


def hands_on(main: Path, remote: Path | None = None, **options) -> Lab:
    """Return adw's hands on the main checkout *main*; *options* are those of `GitCommands`."""
    commands = GitCommands(main, **{"private": main.parent / "private", **options})
    trees = main / "trees"
    repository = Repository(commands, trees=trees, clock=SystemClock())

    return Lab(
        remote=remote or main,
        main=main,
        trees=trees,
        repository=repository,
        workplace=GitWorkplace(repository),
    )


def persons_config(place: Path, monkeypatch, text: str) -> Path:
    """Let the person's own configuration of git be *text*, and who they are."""
    path = place / "persons-gitconfig"
    path.write_text(f"[user]\n name = adw tests\n email = tests@adw.invalid\n{text}")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(path))

    return path


def commit_on_remote(lab: Lab, name: str, text: str, branch: str = "main") -> str:
    """Let somebody else push a commit."""
    other = lab.remote.parent / "other"
    if not other.exists():
        git(lab.remote.parent, "clone", "-q", f"file://{lab.remote}", str(other))
    git(other, "fetch", "-q", "origin")
    git(other, "checkout", "-q", "-B", branch, f"origin/{branch}")
    (other / name).write_text(text)
    git(other, "add", "-A")
    git(other, "commit", "-q", "-m", f"Change {name}")
    git(other, "push", "-q", "origin", branch)

    return git(other, "rev-parse", "HEAD")
