"""
Templates and conditions: what they give, with which type, and what is said of one that has no value.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.expressions.expressions import evaluate, filters_of, holds, paths_of, render
from adws.adw_modules.expressions.values import Rows

CONTEXT = {
    "response": {"paging": {"hasMore": True, "page": 1}, "items": [3, 1, 2], "next": None, "cursor": "abc"},
    "users": [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 7}, {"name": "Ada", "age": 36}],
    "text": "Hello",
    "five": "5",
    "n": 5,
    "zero": 0,
    "yes": True,
    "nothing": None,
    "none_of_it": [],
    "_retry": {"index": 1},
}


class Few(Rows):
    """Rows that say when they are read."""

    def __init__(self, values):
        self._values, self.reads = values, 0

    def __len__(self):
        return len(self._values)

    def __getitem__(self, index):
        self.reads += 1
        return self._values[index]


def give(expression, **more):
    return render(f"{{{{ {expression} }}}}", {**CONTEXT, **more})


def why(expression, context=CONTEXT):
    with pytest.raises(ExpressionError) as info:
        render(f"{{{{ {expression} }}}}", context)
    return info.value.why


# --- templates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("plain", "plain"),
        ("{{ n }}", 5),
        ("\n  {{ n }}\n", 5),
        ("{{ yes }}", True),
        ("{{ nothing }}", None),
        ("{{ response.items }}", [3, 1, 2]),
        ("{{ users[0] }}", {"name": "Ada", "age": 36}),
        ("{{ five }}", "5"),
        ("page {{ n }}", "page 5"),
        ("{{ n }}{{ n }}", "55"),
        ("{{ yes }} {{ nothing }} {{ response.items }} {{ {'a': 'é'} }}", 'true null [3, 1, 2] {"a": "é"}'),
        ("{{ text }}, {{ five }}", "Hello, 5"),
        ("${#array} {# no comment #} }} {{ n }}", "${#array} {# no comment #} }} 5"),
        ("{{ '{{' }}", "{{"),
        ("{{ 'a }} b' }}", "a }} b"),
        ("a\n{{- n -}}\nb", "a5b"),
    ],
)
def test_a_text_that_is_one_expression_keeps_the_type_and_a_longer_one_is_a_text(template, value):
    result = render(template, CONTEXT)

    assert result == value
    assert type(result) is type(value)


def test_lists_and_tables_are_filled_in_wherever_a_text_stands_and_keys_stay():
    value = {"params": {"page": "{{ n + 1 }}", "{{ n }}": [1, None, True, 2.5, "{{ text }}!"]}}

    assert render(value, CONTEXT) == {"params": {"page": 6, "{{ n }}": [1, None, True, 2.5, "Hello!"]}}


def test_a_result_of_another_type_than_json_is_refused():
    for value in (object(), len, {1, 2}, b"x", {1: 2}, [object()]):
        with pytest.raises(ExpressionError):
            render("{{ x }}", {"x": value})
    with pytest.raises(ExpressionError, match="no JSON value"):
        render("a {{ x }}", {"x": len})
    with pytest.raises(ExpressionError, match="is neither true nor false"):
        holds("x", {"x": len})


def test_what_is_filled_in_is_no_template_itself():
    assert render("{{ x }} and {{ x }}", {"x": "{{ secret }}"}) == "{{ secret }} and {{ secret }}"
    assert render("{{ x }}", {"x": "{{ secret }}"}) == "{{ secret }}"


# --- conditions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "is_so"),
    [
        ("response.paging.hasMore", True),
        ("{{ response.paging.hasMore }}", True),
        (" {{ n > 4 }} ", True),
        ("n", True),
        ("zero", False),
        ("0.0", False),
        ("nothing", False),
        ("none_of_it", False),
        ("{}", False),
        ("[0]", True),
        ("response", True),
        ("'true'", True),
        ("' False '", False),
        ("five|int", True),
        ("'[1]'|fromjson", True),
        ("not response.next", True),
        ("response.next is none and n == 5", True),
        ("n == 4 or yes", True),
        ('{"a": {"b": 1}}', True),
    ],
)
def test_a_condition_holds_by_its_value(condition, is_so):
    assert holds(condition, CONTEXT) is is_so


@pytest.mark.parametrize("text", ["5", "[1]", "", "yes", "1", "abc", "trueish" * 9])
def test_a_text_other_than_true_and_false_is_neither(text):
    """
    "5" and "[1]" were taken for false, and nobody noticed that pages were missing.
    """
    for condition in ("x", "not x", "x and true", "x or true", "1 if x else 2"):
        with pytest.raises(ExpressionError, match=r"neither true nor false: compare it"):
            holds(condition, {"x": text})


@pytest.mark.parametrize(
    ("condition", "words", "name"),
    [
        ("respons.paging", "there is no respons, did you mean response?", "respons"),
        ("response.pagin", "there is no pagin in response; it has: paging, items, next, cursor", "pagin"),
        ("response.next.page", "response.next is null, which has no page", "page"),
        ("response.items[7]", "response.items has 3 elements, and no [7]", "7"),
        ("(response|keys)[9]", "the value has 4 elements, and no [9]", "9"),
        ("text.upper", "text is a text, which has no upper", "upper"),
        ("response[1]", "there is no [1] in response", "1"),
        ("{}.x", "there is no x in the value, it is empty", "x"),
        ("users[yes]", "users is a list, which has no true or false", "true or false"),
    ],
)
def test_a_name_that_is_not_there_is_an_error_that_names_it(condition, words, name):
    with pytest.raises(ExpressionError) as info:
        holds(condition, CONTEXT)

    assert words in str(info.value)
    assert repr(condition) in str(info.value) or condition in str(info.value)
    assert (info.value.name, info.value.expression) == (name, condition)


def test_a_condition_is_one_expression():
    for text in ("{{ n }} and {{ n }}", "n }} {{ n", "x {{ n }}", "n }} x", "{{ n"):
        with pytest.raises(ExpressionError):
            holds(text, CONTEXT)
    with pytest.raises(ExpressionError, match="a condition is empty"):
        holds("  ", CONTEXT)


# --- expressions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("response.paging.page + 1", 2),
        ("response['paging']['page']", 1),
        ("response['pag' ~ 'ing'].page", 1),
        ("users[-1].name", "Ada"),
        ("users[n - 5].name", "Ada"),
        ("text[1]", "e"),
        ("text[1:3]", "el"),
        ("text[::-1]", "olleH"),
        ("response.items[:2]", [3, 1]),
        ("'a' + 'b'", "ab"),
        ("[1] + [2]", [1, 2]),
        ("7 - 2 * 3", 1),
        ("7 / 2", 3.5),
        ("7 // 2", 3),
        ("7 % 4", 3),
        ("2 ** 10", 1024),
        ("2 ** -1", 0.5),
        ("-n + +n", 0),
        ("'p' ~ n ~ none", "p5null"),
        ("(1, 2)", [1, 2]),
        ("{'a': n}", {"a": 5}),
        ("1 < n <= 5", True),
        ("n < 3 < 1 / zero", False),
        ("'a' < 'b'", True),
        ("n >= 5 and n != 6 and not n > 5", True),
        ("true == 1", False),
        ("1 == 1.0", True),
        ("'1' == 1", False),
        ("[1, {'a': 2}] == [1, {'a': 2}]", True),
        ("users[0] == users[2]", True),
        ("users[0] != users[1]", True),
        ("nothing == none", True),
        ("2 in response.items", True),
        ("{'name': 'Bob', 'age': 7} in users", True),
        ("'ell' in text", True),
        ("'paging' in response", True),
        ("3 in response", False),
        ("9 not in response.items", True),
        ("'big' if n > 3 else 'small'", "big"),
        ("'big' if n > 9 else 'small'", "small"),
        ("n and 7", 7),
        ("zero and missing", 0),
        ("zero or 7", 7),
        ("n or missing", 5),
        ("missing|default(3)", 3),
        ("response.paging.other.more|d('x')", "x"),
        ("n|default(3)", 5),
        ("missing is defined", False),
        ("n is defined", True),
        ("missing is undefined", True),
        ("_retry.index", 1),
    ],
)
def test_operators_and_names(expression, value):
    result = give(expression)

    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("-3|abs", 3),
        ("(-3)|abs", 3),
        ("'hello World'|capitalize", "Hello world"),
        ("users|count", 3),
        ("response.items|first", 3),
        ("response.items|last", 2),
        ("text|first", "H"),
        ("[[1], [2, 3]]|flatten", [1, 2, 3]),
        ("'1.5'|float", 1.5),
        ("n|float", 5.0),
        ("'[1, 2.5, true]'|fromjson", [1, 2.5, True]),
        ("'42'|int", 42),
        ("3.9|int", 3),
        ("yes|int", 1),
        ("{'a': 1}|items", [["a", 1]]),
        ("response.items|join('-')", "3-1-2"),
        ("['a', none]|join", "anull"),
        ("response|keys", ["paging", "items", "next", "cursor"]),
        ("text|length", 5),
        ("response|length", 4),
        ("'abc'|list", ["a", "b", "c"]),
        ("{'a': 1}|list", ["a"]),
        ("(1, 2)|list", [1, 2]),
        ("text|lower", "hello"),
        ("users|map('name')|list", ["Ada", "Bob", "Ada"]),
        ("users|map(attribute='age')", [36, 7, 36]),
        ("[[4], [5]]|map('0')", [4, 5]),
        ("[{'a': {'b': 1}}]|map('a.b')", [1]),
        ("response.items|max", 3),
        ("users|min(attribute='age')", {"name": "Bob", "age": 7}),
        ("max(1, 7, 3)", 7),
        ("min('b', 'a')", "a"),
        ("min([4, 2])", 2),
        ("'a b; rm -rf /'|quote", "'a b; rm -rf /'"),
        ("n|quote", "5"),
        ("users|rejectattr('age', '>', 10)|map('name')", ["Bob"]),
        ("'a-b-c'|replace('-', '+')", "a+b+c"),
        ("response.items|reverse", [2, 1, 3]),
        ("text|reverse", "olleH"),
        ("2.567|round(1)", 2.6),
        ("2.567|round", 3),
        ("[{'ok': true}, {'ok': false}]|selectattr('ok')", [{"ok": True}]),
        ("users|selectattr('name', 'in', ['Bob'])|length", 1),
        ("response.items|sort", [1, 2, 3]),
        ("response.items|sort(reverse=true)", [3, 2, 1]),
        ("users|sort(attribute='age')|map('age')", [7, 36, 36]),
        ("['b', 'a']|sort", ["a", "b"]),
        ("[]|sort", []),
        ("' a  b '|split", ["a", "b"]),
        ("'a,b'|split(',')", ["a", "b"]),
        ("n|string", "5"),
        ("response.items|sum", 6),
        ("users|sum(attribute='age', start=1)", 80),
        ("{'b': [1, none]}|tojson", '{"b": [1, null]}'),
        ("'  x '|trim", "x"),
        ("users|unique|length", 2),
        ("users|unique(attribute='name')|map('age')", [36, 7]),
        ("text|upper", "HELLO"),
        ("'a b/ü'|urlencode", "a%20b%2F%C3%BC"),
        ("{'a': 1}|values", [1]),
        ("len(text)", 5),
        ("range(3)", [0, 1, 2]),
        ("range(3, 0, -1)", [3, 2, 1]),
        ("range(5, 1)", []),
    ],
)
def test_filters_and_functions(expression, value):
    result = give(expression)

    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    "expression",
    [
        "yes is boolean",
        "6 is divisibleby 3",
        "[] is empty",
        "4 is even",
        "3 is odd",
        "false is false",
        "yes is true",
        "1.5 is float",
        "2 is in [1, 2]",
        "n is integer",
        "yes is not integer",
        "users is list",
        "users is sequence",
        "'a' is lower",
        "response is mapping",
        "none is none",
        "n is number",
        "yes is not number",
        "text is string",
        "n is equalto 5",
        "n is eq(5)",
        "n is gt(4)",
        "n is le 5",
    ],
)
def test_tests(expression):
    assert give(expression) is True


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("'a' + 1", "+ takes numbers, and this is a text"),
        ("1 + yes", "+ takes numbers, and this is true or false"),
        ("'a' * 3", "* takes numbers, and this is a text"),
        ("'%s' % 3", "% takes numbers, and this is a text"),
        ("1 / 0", "/ divides by 0"),
        ("1 // 0", "// divides by 0"),
        ("1 % 0.0", "% divides by 0"),
        ("0 ** -1", "it has no value"),
        ("(-8) ** 0.5", "a root of a number below 0"),
        ("1e300 * 1e300", "too large"),
        ("-text", "- takes numbers"),
        ("'a' < 1", "< compares numbers, or texts; here it has a text and a number"),
        ("1 in 5", "in takes a list, and this is a number"),
        ("1 in 'abc'", "in a text takes a text"),
        ("{1: 2}", "the keys of a table are texts"),
        ("text[::0]", "a slice cannot go on by 0"),
        ("text['a':]", "a slice takes a whole number"),
        ("n[1:2]", "a slice takes a list"),
        ("n|upper", "upper takes a text, and this is a number"),
        ("n|length", "length takes a text, a list or a table"),
        ("n|first", "first takes a list, and this is a number"),
        ("[]|last", "has 0 elements, and no [-1]"),
        ("[]|max", "max of an empty list is nothing"),
        ("[1, 'a']|sort", "sort compares numbers, or texts, and this list has others or both"),
        ("[none, true]|min", "min compares numbers, or texts"),
        ("['a']|sum", "sum takes numbers"),
        ("'x'|int", "int cannot read 'x' as a whole number"),
        ("('1' * 1)|int", "* takes numbers"),
        ("users|int", "int takes numbers, and this is a list"),
        ("'x'|float", "float cannot read 'x' as a number"),
        ("'nan'|float", "too large, or none"),
        ("'{'|fromjson", "fromjson cannot read the text as JSON"),
        ("'NaN'|fromjson", "is no number of JSON"),
        ("'1e999'|fromjson", "is no number of JSON"),
        (r"""'"\\ud800"'|fromjson""", "fromjson cannot read"),
        ("'a'|replace('', 'b')", "replace needs the text that is replaced"),
        ("'a'|split('')", "split needs a separator"),
        ("1.5|round(99)", "round keeps 0 to 15 digits"),
        ("range(1, 5, 0)", "range cannot go on by 0"),
        ("range(1.5)", "range takes a whole number"),
        ("5 is divisibleby 0", "divisibleby 0 cannot be said"),
        ("users|selectattr('age', 'like', 3)", "selectattr knows the comparisons"),
        ("users|map('size')", "there is no size in an element"),
        ("n|keys", "keys takes a table"),
        ("[1]|flatten", "flatten takes a list, and this is a number"),
    ],
)
def test_values_that_do_not_go_together_are_said_to(expression, words):
    assert words in why(expression)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("n|lenght", "there is no filter lenght, did you mean length?"),
        ("n is emty", "there is no test emty, did you mean empty?"),
        ("dict(a=1)", "there is no function dict"),
        ("n|join(1, 2, 3)", "join does not take these arguments"),
        ("n|join(seperator=1)", "join does not take these arguments"),
        ("range()", "range does not take these arguments"),
        ("n|default", "default takes one argument"),
        ("1 if yes", "an if needs an else"),
        ("n +", "it cannot be read"),
        ("", "it cannot be read"),
        ("n n", "it cannot be read"),
        ("[x for x in users]", "it cannot be read"),
        ("range(*users)", "arguments with * or ** are not possible"),
        ("n|join(**users)", "arguments with * or ** are not possible"),
        ("users[1:2, 3]", "Slice is not possible in an expression"),
        (r"'\ud800'", "half of a surrogate pair"),
        ("1" * 5000, "it cannot be read"),
        ("1e999", "too large"),
        ("9" * 300, "more than 512 bits"),
        ("(" * 2000 + "1" + ")" * 2000, "nested too deeply"),
        ("not " * 150 + "1", "nested too deeply"),
        ("1" + " + 1" * 150, "nested too deeply"),
    ],
)
def test_what_is_no_expression_is_refused_before_anything_is_computed(expression, words):
    with pytest.raises(ExpressionError) as info:
        paths_of(f"{{{{ {expression} }}}}")

    assert words in info.value.why


def test_statements_and_odd_texts_are_refused():
    for text, words in (
        ("{% if x %}a{% endif %}", "{% %} is not possible"),
        ("a\0{{ n }}", "NUL"),
        ("{{ n }}" + "x" * 20_000, "at most 20000"),
        ("{{ n", "it cannot be read"),
    ):
        with pytest.raises(ExpressionError, match=r".") as info:
            render(text, CONTEXT)
        assert words in info.value.why


# --- rows ------------------------------------------------------------------------------------------------------


def test_rows_are_read_only_when_they_are_needed():
    rows = Few([1, 2, 3])
    context = {"steps": {"fetch": {"results": rows, "total": 3}}}

    assert evaluate("{{ steps.fetch.results }}", context) is rows
    assert holds("steps.fetch.results", context)
    assert render("{{ steps.fetch.results|length }}", context) == 3
    assert rows.reads == 0

    assert render("{{ steps.fetch.results[1] }}", context) == 2
    assert render("{{ steps.fetch.results|sum }}", context) == 6
    assert render("{{ steps.fetch }}", context) == {"results": [1, 2, 3], "total": 3}
    assert render("{{ [steps.fetch.results] }}", context) == [[1, 2, 3]]
    assert render("{{ steps.fetch.results == [1, 2, 3] }}", context) is True
    assert render("got {{ steps.fetch.results }}", context) == "got [1, 2, 3]"


# --- looking into templates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "paths"),
    [
        ("plain", set()),
        ("{{ a.b.c }} {{ a['d'][0].e }}", {("a", "b", "c"), ("a", "d", "0", "e")}),
        ("{{ a[b.c].d }}", {("a",), ("b", "c")}),
        ("{{ a }} {{ a.b }}", {("a",), ("a", "b")}),
        ("{{ a|default(b) }} {{ c.d is defined }}", {("b",)}),
        ("{{ (a|first).x }} {{ [1].y }}", {("a",)}),
        ("{{ a[1:b] }}", {("a",), ("b",)}),
    ],
)
def test_what_a_template_reads_is_known_without_a_context(template, paths):
    assert paths_of(template) == paths


def test_the_filter_that_each_expression_ends_with_is_known():
    assert filters_of("a {{ x|upper|quote }} {{ y }}") == ("quote", "")
