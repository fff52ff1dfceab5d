"""What a branch changes: counted once for each pair of commits, and asked for again when the branch may have moved."""

from __future__ import annotations

import pytest

from adws.adw_modules.git import worktree
from adws.adw_modules.git.git import GitCommands
from adws.adw_modules.git.worktree import DiffStats
from adws.testing import FakeClock
from tests.integration.git_lab import git, make_lab

BRANCH = "feature-issue-1-adw-1a2b3c4d-work"


@pytest.fixture
def lab(tmp_path):
    return make_lab(tmp_path)


@pytest.fixture
def clock():
    return FakeClock()


class Counting(GitCommands):
    """Git that says what it was asked."""

    asked: list[str]

    def run(self, *args, **options):
        self.__dict__.setdefault("asked", []).append(args[0])
        return super().run(*args, **options)


@pytest.fixture
def commands(lab):
    return Counting(lab.main)


@pytest.fixture
def stats(commands, clock):
    return DiffStats(commands, clock=clock)


def test_lines_and_files_are_counted_and_what_is_no_text_has_no_lines(lab, stats):
    tree = lab.add().path
    (tree / "app.py").write_text("one\ntwo\nthree\n")
    (tree / "a name\twith ünï.bin").write_bytes(bytes(range(256)))
    lab.workplace.commit_all(tree, "feat: change")

    result = stats.of_branch(BRANCH, base="main")

    files = {file.name: (file.added, file.deleted) for file in result.files}
    assert files == {"a name\twith ünï.bin": (None, None), "app.py": (3, 1)}
    assert (result.added, result.deleted) == (3, 1)
    assert result.head == lab.repository.commit_of(BRANCH)


def test_what_came_into_the_base_since_does_not_count(lab, stats):
    tree = lab.add().path
    (tree / "new.txt").write_text("one\n")
    lab.workplace.commit_all(tree, "feat: new")
    git(lab.main, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "elsewhere")

    assert [file.name for file in stats.of_branch(BRANCH, base="main").files] == ["new.txt"]


def test_git_is_asked_again_only_after_a_moment_and_counts_a_pair_of_commits_once(lab, stats, commands, clock):
    tree = lab.add().path
    commands.asked = []
    first = stats.of_branch(BRANCH, base="main")

    assert stats.of_branch(BRANCH, base="main") is first
    assert commands.asked == ["rev-parse", "rev-parse", "diff"]
    clock.advance(worktree.FRESH_SECONDS)
    assert stats.of_branch(BRANCH, base="main") is first
    assert commands.asked == ["rev-parse", "rev-parse", "diff", "rev-parse", "rev-parse"]
    (tree / "new.txt").write_text("one\n")
    lab.workplace.commit_all(tree, "feat: new")
    clock.advance(worktree.FRESH_SECONDS)
    assert stats.of_branch(BRANCH, base="main").added == 1
    (tree / "new.txt").write_text("one\ntwo\n")
    lab.workplace.commit_all(tree, "feat: more")
    assert stats.of_branch(BRANCH, base="main").added == 1
    assert stats.of_branch(BRANCH, base="main", mark=8).added == 2, "the workflow has moved since"
