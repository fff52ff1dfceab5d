"""The git directory that all worktrees share, and git that runs nothing of what somebody planted."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import FilterNotRun
from adws.adw_modules.git import change_policy
from tests.integration.git_lab import git, hands_on, make_lab, persons_config


@pytest.fixture
def lab(tmp_path):
    return make_lab(tmp_path)


@pytest.fixture
def shared(lab):
    return lab.repository


@pytest.fixture
def tree(lab):
    return lab.add().path


def changes(shared, before):
    return set(change_policy.differences(before, shared.marks(), is_forward=shared.is_ancestor))


# --- what is seen ----------------------------------------------------------------------------------------------


def test_work_as_it_is_every_day_changes_nothing(lab, shared, tree):
    before = shared.marks()

    (tree / "a.txt").write_text("a")
    lab.workplace.commit_all(tree, "work")
    git(lab.main, "branch", "--track", "mine", "origin/main")
    git(lab.main, "stash", "-q")
    git(lab.main, "switch", "-q", "main")
    git(lab.main, "commit", "-q", "--allow-empty", "-m", "On")
    git(lab.main, "tag", "new")

    assert changes(shared, before) == set()


def test_links_files_and_refs_are_seen(lab, shared, tmp_path):
    common = lab.main / ".git"
    git(lab.main, "tag", "v1")
    (common / "hooks" / "post-commit").write_text("true\n")
    before = shared.marks()

    (common / "hooks" / "pre-push").symlink_to(tmp_path / "elsewhere")
    (common / "hooks" / "post-commit").write_text("false\n")
    (common / "hooks" / "x.sample").write_text("")
    (common / "config.worktree").write_text("[core]\n\thooksPath = x\n")
    git(lab.main, "tag", "-f", "v1", "origin/main~0^{tree}")

    assert changes(shared, before) == {
        "hooks/pre-push",
        "hooks/post-commit",
        "config config.worktree: core.hookspath",
        "refs/tags/v1",
    }


# --- what is not run -------------------------------------------------------------------------------------------


def test_a_filter_of_the_person_runs_with_few_variables_and_without_secrets(lab, tree, tmp_path, monkeypatch):
    for name in ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("WANTED", "by-name")
    persons_config(tmp_path, monkeypatch, f'[filter "look"]\n clean = "env > {tmp_path}/env; cat"\n')
    (tree / ".gitattributes").write_text("*.txt filter=look\n")
    (tree / "a.txt").write_text("a")

    hands_on(lab.main, variables=("WANTED",)).workplace.commit_all(tree, "work")

    seen = (tmp_path / "env").read_text()
    assert "WANTED=by-name" in seen
    assert "hush" not in seen


@pytest.mark.parametrize("driver", ["crypt", "lfs"])
def test_a_file_is_not_committed_past_a_filter_that_is_not_run(lab, tree, tmp_path, monkeypatch, driver):
    """
    git-crypt writes its filter into the repository: what it is for would be pushed as plain text.
    """
    (tree / ".gitattributes").write_text(f"*.key filter={driver}\n")
    if driver == "lfs":
        persons_config(tmp_path, monkeypatch, f'[filter "lfs"]\n clean = touch {tmp_path}/ran\n')
    else:
        git(lab.main, "config", "filter.crypt.clean", f"touch {tmp_path}/ran")
    workplace = hands_on(lab.main).workplace
    (tree / "notes.txt").write_text("no filter is for this")
    assert workplace.commit_all(tree, "work") is not None
    (tree / "my.key").write_text("secret")

    with pytest.raises(FilterNotRun, match=rf"my\.key is not committed, because its attribute says filter={driver}"):
        workplace.commit_all(tree, "work")
    assert not (tmp_path / "ran").exists()


def test_the_commit_of_a_repository_inside_is_taken_and_git_is_not_run_there(lab, tree, tmp_path):
    inner = tree / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "a").write_text("1\n")
    (inner / ".gitattributes").write_text("* filter=evil\n")
    git(inner, "add", ".")
    git(inner, "commit", "-q", "-m", "one")
    assert lab.workplace.commit_all(tree, "first") is not None
    first = git(tree, "rev-parse", "HEAD:inner")
    git(inner, "commit", "-q", "--allow-empty", "-m", "two")
    git(inner, "config", "filter.evil.clean", f"touch {tmp_path}/ran; cat")
    (inner / "a").write_text("2\n")

    assert lab.workplace.status(tree) == ("inner",)
    assert lab.workplace.commit_all(tree, "second") is not None

    assert git(tree, "rev-parse", "HEAD:inner") == git(inner, "rev-parse", "HEAD") != first
    assert lab.workplace.patch_of_changes(tree) == b""
    assert not (tmp_path / "ran").exists()


# --- commits and files -----------------------------------------------------------------------------------------


def test_what_aider_keeps_for_itself_is_no_part_of_the_work(lab, tree):
    (tree / ".aider.tags.cache.v4").mkdir()
    (tree / ".aider.tags.cache.v4" / "cache.db").write_bytes(b"x")
    assert lab.workplace.status(tree) == ()
    assert lab.workplace.commit_all(tree, "work") is None
    (tree / ".aider.notes").write_text("mine")

    assert lab.workplace.status(tree) == (".aider.notes",)
    assert lab.workplace.commit_all(tree, "work") is not None
    assert git(tree, "ls-tree", "-r", "--name-only", "HEAD").count(".aider") == 1


def test_every_commit_is_told_with_all_that_others_read(lab, tree):
    base = git(tree, "rev-parse", "HEAD")
    (tree / "a.txt").write_text("passing\n")
    lab.workplace.commit_all(tree, "First\n\nwith words")
    (tree / "a.txt").unlink()
    (tree / "b.txt").write_text("stays\n")
    lab.workplace.commit_all(tree, "Second")

    second, first = lab.workplace.commit_texts(tree, base)

    assert (first.message.strip(), second.message.strip()) == ("First\n\nwith words", "Second")
    assert "+passing" in first.patch
    assert "-passing" in second.patch
    assert "@" in first.person
    assert second.sha == git(tree, "rev-parse", "HEAD")
    assert lab.workplace.commit_texts(tree, "HEAD") == ()


def test_files_are_shown_as_another_commit_has_them_and_nothing_is_committed(lab, tree):
    base = git(tree, "rev-parse", "HEAD")
    known = git(tree, "ls-tree", "--name-only", "HEAD").splitlines()[0]
    was = (tree / known).read_text()
    (tree / known).write_text("other\n")
    (tree / "new.md").write_text("new\n")
    lab.workplace.commit_all(tree, "work")
    head = git(tree, "rev-parse", "HEAD")

    lab.workplace.show_as(tree, base, [known, "new.md"])
    assert (tree / known).read_text() == was
    assert not (tree / "new.md").exists()
    assert git(tree, "rev-parse", "HEAD") == head

    lab.workplace.show_as(tree, "HEAD", [known, "new.md"])
    assert lab.workplace.status(tree) == ()
