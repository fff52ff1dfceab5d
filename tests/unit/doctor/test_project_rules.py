"""What a repository is made of, by its files."""

from __future__ import annotations

import json

import pytest

from adws.doctor.project_init import Project, ProjectCommand, detect, given


def found(*names: str, **texts: str) -> Project:
    """Return what is detected; a keyword `Makefile=...` is a file with that text, `_` stands for a dot."""
    named = {name.replace("_", ".", 1) if "_" in name else name: text for name, text in texts.items()}
    return detect({*names, *named}, named)


PACKAGE = json.dumps({"scripts": {"test": "jest", "lint": "eslint ."}})
NO_TEST = json.dumps({"scripts": {"test": 'echo "Error: no test specified" && exit 1', "test:unit": "vitest"}})
PYTEST = "[tool.pytest.ini_options]\n"


@pytest.mark.parametrize(
    ("project", "language", "test", "lint"),
    [
        (found(pyproject_toml=PYTEST), "Python", "python3 -m pytest", None),
        (found(pyproject_toml=PYTEST + "[tool.ruff]\n"), "Python", "python3 -m pytest", "ruff check ."),
        (found("uv.lock", pyproject_toml=PYTEST + "[tool.ruff]\n"), "Python", "uv run pytest", "uv run ruff check ."),
        (found("poetry.lock", pyproject_toml=PYTEST), "Python", "poetry run pytest", None),
        (found("pdm.lock", pyproject_toml=PYTEST), "Python", "pdm run pytest", None),
        (found("Pipfile", "Pipfile.lock", "pytest.ini"), "Python", "pipenv run pytest", None),
        (found("setup.py", "conftest.py"), "Python", "python3 -m pytest", None),
        (found("setup.py", "tests/conftest.py", "ruff.toml"), "Python", "python3 -m pytest", "ruff check ."),
        (found(setup_cfg="[tool:pytest]\n[flake8]\n"), "Python", "python3 -m pytest", "flake8"),
        (found(tox_ini="[pytest]\n[flake8]\n"), "Python", "python3 -m pytest", "flake8"),
        (found(tox_ini="[tox]\n"), "Python", "tox", None),
        (found(tox_ini="[testenv]\ndeps = pytest\n"), "Python", "python3 -m pytest", None),
        (found("setup.py", "requirements.txt", ".flake8"), "Python", None, "flake8"),
        (detect({"requirements.txt"}, {"requirements.txt": "pytest==8.0\n"}), "Python", "python3 -m pytest", None),
        (detect({"requirements.txt"}, {"requirements.txt": "pytest-mock\n"}), "Python", None, None),
        (found("noxfile.py"), "Python", "nox", None),
        (found("manage.py"), "Python", "python3 manage.py test", None),
        (found("setup.py", "tests/test_a.py"), "Python", "python3 -m unittest discover -s tests", None),
        (found("a.py", "test_a.py"), "Python", "python3 -m unittest discover -s .", None),
        (found("a.py"), "Python", None, None),
        (found(pyproject_toml="[tool.pylint]\n"), "Python", None, "pylint --recursive=y ."),
        (found(pyproject_toml="[tool.black]\n"), "Python", None, "black --check ."),
        (found(pyproject_toml="this is not TOML"), "Python", None, None),
        (found(package_json=PACKAGE), "JavaScript", "npm run test", "npm run lint"),
        (found("pnpm-lock.yaml", package_json=PACKAGE), "JavaScript", "pnpm run test", "pnpm run lint"),
        (found("yarn.lock", package_json=PACKAGE), "JavaScript", "yarn run test", "yarn run lint"),
        (found("bun.lockb", package_json=PACKAGE), "JavaScript", "bun run test", "bun run lint"),
        (found("package-lock.json", package_json=NO_TEST), "JavaScript", "npm run test:unit", None),
        (found(package_json="{"), "JavaScript", None, None),
        (found(package_json='{"scripts": []}'), "JavaScript", None, None),
        (found("deno.json"), "Deno", "deno test", "deno lint"),
        (found("go.mod"), "Go", "go test ./...", "go vet ./..."),
        (found("go.mod", ".golangci.yml"), "Go", "go test ./...", "golangci-lint run"),
        (found("Cargo.toml"), "Rust", "cargo test", "cargo clippy --all-targets -- -D warnings"),
        (found("pom.xml"), "Java", "mvn --batch-mode test", None),
        (found("pom.xml", "mvnw"), "Java", "./mvnw --batch-mode test", None),
        (found("build.gradle.kts"), "Java or Kotlin", "gradle test", None),
        (found("build.gradle", "gradlew"), "Java or Kotlin", "./gradlew test", None),
        (found("build.sbt"), "Scala", "sbt test", None),
        (found("Shop.sln", ".editorconfig"), ".NET", "dotnet test", "dotnet format --verify-no-changes"),
        (found("Gemfile", "spec/", ".rubocop.yml"), "Ruby", "bundle exec rspec", "bundle exec rubocop"),
        (found("Gemfile", "Rakefile", "test/"), "Ruby", "bundle exec rake test", None),
        (found("Gemfile", "Rakefile"), "Ruby", None, None),
        (found("phpunit.xml", composer_json="{}"), "PHP", "vendor/bin/phpunit", None),
        (
            found(composer_json='{"scripts": {"test": "x", "lint": "y"}}'),
            "PHP",
            "composer run test",
            "composer run lint",
        ),
        (found("mix.exs", ".formatter.exs"), "Elixir", "mix test", "mix format --check-formatted"),
        (found("Package.swift"), "Swift", "swift test", None),
        (found(pubspec_yaml="name: x\n"), "Dart", "dart test", "dart analyze"),
        (
            found(pubspec_yaml="dependencies:\n  flutter:\n    sdk: flutter\n"),
            "Dart",
            "flutter test",
            "flutter analyze",
        ),
        (found("CMakeLists.txt"), "C or C++", None, None),
    ],
    ids=lambda value: None if isinstance(value, Project) else value,
)
def test_language_and_commands_are_told_by_the_files(project, language, test, lint):
    assert project.languages == (language,)
    assert (project.test and project.test.line, project.lint and project.lint.line) == (test, lint)


@pytest.mark.parametrize(
    ("names", "setup"),
    [
        (["uv.lock", "pyproject.toml"], ["uv sync"]),
        (["poetry.lock", "pyproject.toml"], ["poetry install"]),
        (["package.json", "package-lock.json"], ["npm ci"]),
        (["package.json", "yarn.lock"], ["yarn install --frozen-lockfile"]),
        (
            ["pyproject.toml", "uv.lock", "package.json", "pnpm-lock.yaml"],
            ["uv sync", "pnpm install --frozen-lockfile"],
        ),
        (["Gemfile", "Gemfile.lock"], ["bundle install"]),
        (["composer.json", "composer.lock"], ["composer install --no-interaction"]),
        (["mix.exs", "mix.lock"], ["mix deps.get"]),
        (["go.mod"], []),
        (["package.json"], []),
    ],
)
def test_what_a_fresh_checkout_needs_is_told_by_lock_files(names, setup):
    assert [command.line for command in detect(names, {}).setup] == setup


@pytest.mark.parametrize(
    ("project", "test", "lint"),
    [
        (found("go.mod", Makefile="test: build\n\tgo test\nlint:\n"), ("make", "test"), ("make", "lint")),
        (found("go.mod", Makefile="tests:\n"), ("make", "tests"), ("go", "vet", "./...")),
        (found("go.mod", Makefile="test := 1\n.PHONY: test\n"), ("go", "test", "./..."), ("go", "vet", "./...")),
        (found("go.mod", justfile="@test name:\n"), ("just", "test"), ("go", "vet", "./...")),
        (found("go.mod", "scripts/test", "bin/lint"), ("scripts/test",), ("bin/lint",)),
    ],
    ids=["make", "plural", "no-target", "just", "scripts"],
)
def test_what_the_repository_says_itself_comes_first(project, test, lint):
    assert (project.test.argv, project.lint.argv) == (test, lint)


def test_a_command_says_what_speaks_for_it():
    project = found("uv.lock", pyproject_toml=PYTEST, Makefile="lint:\n")

    assert project.test == ProjectCommand(argv=("uv", "run", "pytest"), source="pyproject.toml, tool.pytest")
    assert project.lint == ProjectCommand(argv=("make", "lint"), source="Makefile, lint")


def test_hooks_of_pre_commit_check_the_style_when_nothing_else_does():
    assert found("CMakeLists.txt", ".pre-commit-config.yaml").lint.line == "pre-commit run --all-files"
    assert found("go.mod", ".pre-commit-config.yaml").lint.line == "go vet ./..."


def test_every_language_is_named_and_the_first_gives_the_commands():
    project = found("go.mod", package_json=PACKAGE)

    assert project.languages == ("JavaScript", "Go")
    assert project.test.line == "npm run test"


def test_of_an_empty_repository_nothing_is_known():
    assert detect([], {}) == Project()


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("make test", ProjectCommand(argv=("make", "test"), source="you")),
        ("pytest -k 'a b'", ProjectCommand(argv=("pytest", "-k", "a b"), source="you")),
        ("make test && make lint", ProjectCommand(shell="make test && make lint", source="you")),
        ("CI=1 npm test", ProjectCommand(shell="CI=1 npm test", source="you")),
        ("echo 'open ", ProjectCommand(shell="echo 'open", source="you")),
    ],
)
def test_what_somebody_types_is_run_by_a_shell_only_when_it_needs_one(text, command):
    assert given(text, "you") == command
    assert command.line
