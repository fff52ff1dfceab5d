"""Every key of a TOML text has a line, and it is the one a person would point at."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.config.toml_file import lines_of

EVERYTHING = '''\
# [not.a.table]
top = 1
"quoted.key" = "# no comment"  # a comment with [brackets]
"caf\\u00e9" = 'C:\\'
dotted . "in.side" = 1979-05-27 07:32:00

[table]
long = """
key = "inside" \\""" ""two"""""
literal = \'\'\'
[also.inside]\'\'\'
after = """"""
list = [
  1,  # one ]
  "two, ]",
  [ { a = 1, b = { c = "}" } },
    3 ],
]

[[array]]
[array.sub]
x = 1
[[array]]
[[array.deep]]
y = true
[[array.deep]]
y = false
[other.implicit]
z = -1
[other]
'''
EXPECTED = {
    ("top",): 2,
    ("quoted.key",): 3,
    ("café",): 4,
    ("dotted",): 5,
    ("dotted", "in.side"): 5,
    ("table",): 7,
    ("table", "long"): 8,
    ("table", "literal"): 10,
    ("table", "after"): 12,
    ("table", "list"): 13,
    ("table", "list", 0): 14,
    ("table", "list", 1): 15,
    ("table", "list", 2): 16,
    ("table", "list", 2, 0): 16,
    ("table", "list", 2, 0, "a"): 16,
    ("table", "list", 2, 0, "b"): 16,
    ("table", "list", 2, 0, "b", "c"): 16,
    ("table", "list", 2, 1): 17,
    ("array",): 20,
    ("array", 0): 20,
    ("array", 0, "sub"): 21,
    ("array", 0, "sub", "x"): 22,
    ("array", 1): 23,
    ("array", 1, "deep"): 24,
    ("array", 1, "deep", 0): 24,
    ("array", 1, "deep", 0, "y"): 25,
    ("array", 1, "deep", 1): 26,
    ("array", 1, "deep", 1, "y"): 27,
    ("other",): 28,
    ("other", "implicit"): 28,
    ("other", "implicit", "z"): 29,
}


def paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], object]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*path, key), one
        yield from paths(one, (*path, key))


@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["unix", "windows"])
def test_every_form_of_key_and_value_has_its_line(line_end):
    text = EVERYTHING.replace("\n", line_end)

    assert lines_of(text) == EXPECTED
    assert set(EXPECTED) == {path for path, _ in paths(tomllib.loads(text))}


def test_a_text_without_keys_has_no_lines():
    assert lines_of("") == {}
    assert lines_of("# nothing\n") == {}


def test_a_text_that_is_no_toml_is_refused_by_its_line():
    with pytest.raises(ValueError, match="line 2 of the text is not TOML"):
        lines_of("a = 1\nb = 2\n= 3\n")


def test_depth_that_the_parser_accepts_is_no_trouble():
    text = f"x = {'[' * 200}\n7{']' * 200}\n"

    assert tomllib.loads(text)
    assert lines_of(text)["x", *[0] * 200] == 2


# --- any document ----------------------------------------------------------------------------------------------

KEYS = st.text(st.sampled_from("ab.\"'# ]=\\é\t"), max_size=4)
TREES = st.recursive(
    st.just(None),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=3),
    max_leaves=12,
)


class Writer:
    """Writes a tree as TOML, each leaf a text that says on which line it stands."""

    def __init__(self) -> None:
        self.line = 1

    def table(self, tree: dict[str, object], header: tuple[str, ...] = ()) -> str:
        inside, below = "", ""
        for key, value in tree.items():
            if not isinstance(value, dict):
                inside += f"{quoted(key)} = {self.value(value)}{self.new_line()}"
        for key, value in tree.items():
            if isinstance(value, dict):
                path = (*header, quoted(key))
                below += f"[{'.'.join(path)}]{self.new_line()}{self.table(value, path)}"
        return inside + below

    def value(self, tree: object) -> str:
        if isinstance(tree, dict):
            return "{" + ", ".join(f"{quoted(key)} = {self.value(value)}" for key, value in tree.items()) + "}"
        if isinstance(tree, list):
            return "[" + "".join(f"{self.new_line()}  {self.value(value)}," for value in tree) + "]"
        return f'"""{self.line}"""' if self.line % 2 else f"'{self.line}'"

    def new_line(self) -> str:
        self.line += 1
        return " # ], = '''\n" if self.line % 3 else "\n"


def quoted(key: str) -> str:
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"'


@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_each_value_of_any_document_has_the_line_it_stands_on(tree):
    text = Writer().table(tree)
    lines = lines_of(text)

    assert set(lines) == {path for path, _ in paths(tomllib.loads(text))}
    for path, value in paths(tomllib.loads(text)):
        if isinstance(value, str):
            assert lines[path] == int(value)
