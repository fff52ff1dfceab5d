"""The diff of two commits: each file with its lines, bounded and redacted, whatever the repository has set up."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.git import diff
from adws.adw_modules.git.diff import Diffs
from adws.adw_modules.git.git import GitCommands
from adws.testing import FakeClock
from tests.integration.git_lab import git, make_lab

BRANCH = "feature-issue-1-adw-1a2b3c4d-work"
SECRET = "the-secret-of-the-tests"


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
def diffs(commands, clock):
    return Diffs(commands, clock=clock, redact=lambda text: text.replace(SECRET, "[redacted]"))


@pytest.fixture
def commit(lab):
    """Write files into the worktree of a workflow, commit them, and return its commit."""
    tree = lab.add().path

    def write(**files: str | bytes | None) -> str:
        for name, content in files.items():
            path = tree / name.replace("__", "/").replace("_DOT_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
        lab.workplace.commit_all(tree, "feat: change")
        return lab.repository.commit_of(BRANCH)

    write.tree = tree
    return write


def by_name(result: diff.Diff) -> dict[str, diff.FileDiff]:
    return {file.name: file for file in result.files}


def test_each_file_is_shown_with_its_status_lines_and_patch(lab, diffs, commit):
    (commit.tree / "a name\twith ünï.bin").write_bytes(bytes(range(256)))
    (commit.tree / "link").symlink_to("nowhere")
    head = commit(app_DOT_py="one\ntwo\n", src__deep__new_DOT_txt="first\n", empty_DOT_txt="", _DOT_gitignore=None)

    result = diffs.between("main", ("refs/heads/gone", BRANCH))

    files = by_name(result)
    assert {name: (one.status, one.added, one.deleted) for name, one in files.items()} == {
        ".gitignore": ("deleted", 0, 3),
        "a name\twith ünï.bin": ("added", None, None),
        "app.py": ("changed", 2, 1),
        "empty.txt": ("added", 0, 0),
        "link": ("added", 1, 0),
        "src/deep/new.txt": ("added", 1, 0),
    }
    assert files["app.py"].patch == "@@ -1 +1,2 @@\n-print('one')\n+one\n+two\n"
    assert files["src/deep/new.txt"].patch == "@@ -0,0 +1 @@\n+first\n"
    assert files["link"].patch.startswith("@@ -0,0 +1 @@\n+nowhere\n")
    assert files["a name\twith ünï.bin"].left_out == "binary file"
    assert (result.added, result.deleted, result.file_count, result.head) == (4, 4, 6, head)
    assert not result.is_cut, "a binary file is named, and cannot be shown"


def test_a_file_that_becomes_a_link_does_not_shift_the_patches_of_others(diffs, commit):
    commit(a_DOT_txt="a\n", b_DOT_txt="b\n", c_DOT_txt="c\n")
    first = diffs.between(BRANCH, (BRANCH,)).head
    (commit.tree / "b.txt").unlink()
    (commit.tree / "b.txt").symlink_to("a.txt")
    commit(c_DOT_txt="changed\n")

    files = by_name(diffs.between(first, (BRANCH,), mark=1))

    assert files["b.txt"].patch.splitlines()[1] == "-b"
    assert "+a.txt" in files["b.txt"].patch
    assert files["c.txt"].patch == "@@ -1 +1 @@\n-c\n+changed\n"


def test_names_that_git_quotes_or_that_a_folder_had_before_have_their_own_patches(diffs, commit, monkeypatch):
    monkeypatch.setattr(diff, "_AT_ONCE", 2)
    commit(a="a\n", b__c="c\n", z="z\n")
    first = diffs.between(BRANCH, (BRANCH,)).head
    (commit.tree / "a").unlink()
    (commit.tree / "a").mkdir()
    (commit.tree / "a" / "z").write_text("below\n")
    (commit.tree / 'quo"ted\n').write_text("quoted\n")
    (commit.tree / "tab\t[x]*").write_text("tab\n")
    commit(z="changed\n")

    patches = {file.name: file.patch.splitlines()[-1] for file in diffs.between(first, (BRANCH,), mark=1).files}

    assert patches == {"a": "-a", "a/z": "+below", 'quo"ted\n': "+quoted", "tab\t[x]*": "+tab", "z": "+changed"}


def test_no_configuration_of_the_repository_hides_a_file_or_starts_a_program(lab, diffs, commit, tmp_path):
    harm = tmp_path / "harm"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {harm}\necho converted\n")
    program.chmod(0o700)
    for key in ("diff.external", "diff.evil.textconv", "diff.evil.command"):
        git(lab.main, "config", key, str(program))
    attributes = "*.py -diff\n*.txt diff=evil\n"
    (lab.main / ".gitattributes").write_text(attributes)
    git(lab.main, "add", ".gitattributes")
    (lab.main / ".git" / "info").mkdir(exist_ok=True)
    (lab.main / ".git" / "info" / "attributes").write_text(attributes)
    commit(app_DOT_py="shown\n", a_DOT_txt="as it is\n", _DOT_gitattributes=attributes)

    files = by_name(diffs.between("main", (BRANCH,)))

    assert "+shown" in files["app.py"].patch
    assert files["a.txt"].patch == "@@ -0,0 +1 @@\n+as it is\n"
    assert not harm.exists()


def test_secrets_are_removed_from_patches_and_names(diffs, commit):
    commit(**{f"{SECRET}_DOT_txt": f"before {SECRET} after\n"})

    result = diffs.between("main", (BRANCH,))

    assert by_name(result)["[redacted].txt"].patch == "@@ -0,0 +1 @@\n+before [redacted] after\n"


def test_a_token_at_the_end_of_what_is_shown_is_not_left_in_halves(diffs, commit, monkeypatch):
    monkeypatch.setattr(diff, "MOST_PATCH_BYTES", 60)
    commit(a_DOT_txt="".join(f"{number:02} {SECRET}\n" for number in range(20)))

    file = by_name(diffs.between("main", (BRANCH,)))["a.txt"]

    assert "+00 [redacted]\n" in file.patch
    assert SECRET[:4] not in file.patch
    assert file.left_out.endswith("more lines are not shown")


def test_large_patches_are_cut_and_large_files_are_named(diffs, commit, monkeypatch):
    monkeypatch.setattr(diff, "MOST_BLOB_BYTES", 3000)
    monkeypatch.setattr(diff, "MOST_PATCH_BYTES", 1000)
    monkeypatch.setattr(diff, "MOST_BYTES", 2000)
    monkeypatch.setattr(diff, "_AT_ONCE", 2)
    commit(a="line\n" * 500, b="x" * 4000, c="line\n" * 150, d="late\n" * 30, e="late\n", f=b"\0binary")

    result = diffs.between("main", (BRANCH,))
    files = by_name(result)

    assert len(files["a"].patch) <= 1000
    assert files["a"].patch.endswith("+line\n")
    assert files["a"].left_out == f"{501 - files['a'].patch.count(chr(10))} more lines are not shown"
    assert (files["b"].patch, files["b"].left_out) == ("", "larger than 2 KiB")
    assert files["c"].patch.count("+line") == 150
    assert files["e"] == diff.FileDiff(
        name="e", status="added", added=1, deleted=0, left_out="the diff is larger than 1 KiB"
    )
    assert files["d"].left_out == "the diff is larger than 1 KiB"
    assert files["f"].left_out == "binary file"
    assert result.is_cut
    assert result.file_count == 6


def test_only_the_first_files_are_listed_and_all_are_counted(diffs, commit, monkeypatch):
    monkeypatch.setattr(diff, "MOST_FILES", 2)
    commit(**dict.fromkeys("abc", "line\n"))

    result = diffs.between("main", (BRANCH,))

    assert [file.name for file in result.files] == ["a", "b"]
    assert (result.file_count, result.added, result.is_cut) == (3, 3, True)


def test_a_shortened_diff_keeps_every_file_and_the_first_patches(diffs, commit):
    commit(a="line\n", b="line\n" * 50, c="line\n")

    shown = by_name(diffs.between("main", (BRANCH,)).shortened(60))

    assert {name: bool(file.patch) for name, file in shown.items()} == {"a": True, "b": False, "c": False}
    assert shown["b"].left_out == "see the whole diff"


def test_later_changes_of_the_base_do_not_count(lab, diffs, commit):
    commit(new_DOT_txt="one\n")
    git(lab.main, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "elsewhere")

    assert list(by_name(diffs.between("main", (BRANCH,)))) == ["new.txt"]


def test_git_is_asked_again_only_after_a_moment_and_reads_a_pair_of_commits_once(diffs, commit, commands, clock):
    commit(new_DOT_txt="one\n")
    commands.asked = []
    first = diffs.between("main", (BRANCH,))
    asked = ["rev-parse", "rev-parse", "merge-base", "diff", "ls-tree", "ls-tree", "diff"]

    assert diffs.between("main", (BRANCH,)) is first
    assert commands.asked == asked
    clock.advance(diff.FRESH_SECONDS)
    assert diffs.between("main", (BRANCH,)) is first
    assert commands.asked == [*asked, "rev-parse", "rev-parse", "merge-base"]
    commit(new_DOT_txt="one\ntwo\n")
    assert diffs.between("main", (BRANCH,)).added == 1
    assert diffs.between("main", (BRANCH,), mark=8).added == 2, "the workflow has moved since"


@pytest.mark.parametrize("names", [("nowhere",), ("",), ("a\0b",), ("--output=harm",), ()])
def test_commits_that_are_not_here_have_no_diff(diffs, names):
    assert diffs.between("main", names) is None
    assert diffs.between(names[0] if names else "", ("main",)) is None
    assert not Path("harm").exists()
