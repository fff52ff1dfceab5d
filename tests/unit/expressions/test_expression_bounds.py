"""
Hostile templates: nothing gets out of an expression, and nothing in it takes long, gets large or breaks.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.expressions.expressions import holds, render
from adws.adw_modules.expressions.values import (
    FILTERS,
    FUNCTIONS,
    MAX_ITEMS,
    MAX_TEXT,
    MAX_WORK,
    TESTS,
    EvaluationError,
    WorkBudget,
)

#: Processor seconds that the worst template may take. It takes a fraction; a missing bound takes minutes.
MOST_SECONDS = 10.0


class Spy:
    """An object that must not be touched."""

    secret = "the secret"

    def __call__(self):
        raise AssertionError("it was called")

    def __getattr__(self, name):
        raise AssertionError(f"{name} was read")

    def __str__(self):
        raise AssertionError("it was written out")

    __repr__ = __str__


@pytest.mark.parametrize(
    "expression",
    [
        "x.__class__",
        "''.__class__.__mro__[1].__subclasses__()",
        "x['__class__']",
        "x['__cl' ~ 'ass__'].__mro__",
        "x|attr('__class__')",
        "x|attr('secret')",
        "x.mro()",
        "''.join(['a'])",
        "'{0.__class__}'.format(x)",
        "'{x}'.format_map({'x': 1})",
        "('%s' ~ '')|format(x)",
        "'%(a)s' % {'a': 1}",
        "x()",
        "f()",
        "spy.secret",
        "spy",
        "spy()",
        "spy ~ ''",
        "spy == spy and spy or spy",
        "spy|tojson",
        "[spy]|join",
        "[spy]|unique",
        "[spy, spy]|sort",
        "spy in [1]|map('secret')",
        "[spy]|map('secret')",
        "[spy]|map('__class__')",
        "{'a': spy}|items",
        "lipsum.__globals__['os'].popen('id').read()",
        "cycler.__init__.__globals__.os",
        "self.__init__",
        "self._TemplateReference__context",
        "namespace(a=1)",
        "config",
        "request.application",
        "joiner()",
        "dict(a=1)",
        "caller()",
        "loop.index",
        "super()",
        "_('a')",
        "gettext('a')",
        "range.__self__",
        "(1).real",
        "(1.5).hex()",
        "[].append(1)",
        "{}.update(a=1)",
        "x|map('upper')|list",
        "x|select('odd')",
        "x|groupby('a')",
        "x|pprint",
        "x|safe",
        "x|xmlattr",
        "x is callable",
        "x is sameas x",
        "x is filter",
    ],
)
def test_there_is_no_way_from_an_expression_to_the_program(expression):
    """
    Whatever is tried gives an error, and no object is asked for anything.
    """
    context = {"x": "text", "f": lambda: 1 / 0, "spy": Spy()}

    with pytest.raises(ExpressionError):
        render(f"{{{{ {expression} }}}}", context)


@pytest.mark.parametrize(
    "text", ["{% import 'os' as os %}", "{% include '/etc/passwd' %}", "{% macro a() %}{% endmacro %}"]
)
def test_there_are_no_statements(text):
    with pytest.raises(ExpressionError, match="only expressions"):
        render(text, {})


def test_a_key_that_looks_like_an_attribute_is_only_a_key():
    assert render("{{ x['__class__'] }}", {"x": {"__class__": "a key"}}) == "a key"
    assert render("{{ x.__typename }}", {"x": {"__typename": "User"}}) == "User"


BIG = {
    "words": ["word"] * MAX_ITEMS,
    "same": ["a" * 5_000 + str(number) for number in range(2_000)],
    "numbers": list(range(MAX_ITEMS)),
    "long": "a" * MAX_TEXT,
    "longer": "a" * (MAX_TEXT + 1),
    "more": [0] * (MAX_ITEMS + 1),
    "deep": [[[[list(range(50))] * 20] * 20] * 20] * 20,
    "huge": 10**10_000,
    "table": {str(number): number for number in range(MAX_ITEMS)},
    "million": [{"a": 1}] * 400_000,
}
HOSTILE = [
    "'a' * 10**9",
    "[0] * 10**9",
    "10 ** (10**10)",
    "9**9**9**9",
    "2**512 * 2**512",
    "2.0**9999",
    "huge + 1",
    "huge * huge",
    "huge|string",
    "huge|float",
    "range(10**9)",
    "range(0, 0 - 10**30, -1)",
    "range(10**100)",
    "range(100000)|map('a')",
    "long ~ long",
    "long + long",
    "long|replace('a', 'bbbbbbbbbb')",
    "longer|upper",
    "longer|split",
    "longer ~ ''",
    "long|split('a')",
    "long|list",
    "words|join(long)",
    "[long, long]|join",
    "[long, long]|tojson",
    "more|sort",
    "more + more",
    "numbers + numbers",
    "[numbers, numbers]|flatten",
    "deep == deep",
    "deep|tojson",
    "deep|unique",
    "deep in deep",
    "million|unique",
    "million == million",
    "million|map('a')",
    "million",
    "million ~ ''",
    "million[0:1]",
    "long|fromjson",
    "long|replace('a', '[')|fromjson",
    "long|int",
    "long|float",
    "longer in longer",
]
REPEATED = [
    ("numbers", "|sort"),
    ("same", "|sort"),
    ("same", "|unique"),
    ("words", "|reverse"),
    ("numbers", "|sort(reverse=true)"),
    ("table|items", "|list"),
    ("long", "|upper|lower"),
    ("long", "|replace('a', 'b')|replace('b', 'a')"),
    ("[[numbers]]", "|tojson|fromjson"),
]
SIDE_BY_SIDE = [
    "('b' in long)",
    "(-1 in numbers)",
    "(long == long ~ '')",
    "(numbers == numbers)",
    "(numbers|max < 0)",
    "(same|min < '')",
    "(deep == deep)",
    "(numbers[1:]|length)",
    "(long[1:]|length == 0)",
    "(words|join|length == 0)",
]


@pytest.mark.parametrize("expression", HOSTILE)
def test_what_would_be_too_large_or_take_too_long_is_refused(expression):
    before = time.process_time()
    with pytest.raises(ExpressionError):
        render(f"{{{{ {expression} }}}}", BIG)

    assert time.process_time() - before < MOST_SECONDS


@pytest.mark.parametrize(("first", "repeated"), REPEATED)
def test_much_work_one_after_the_other_ends(first, repeated):
    before = time.process_time()
    with pytest.raises(ExpressionError, match=r"too much work|at most|nested too deeply"):
        render(f"{{{{ {first}{repeated * (90 // repeated.count('|'))} }}}}", BIG)

    assert time.process_time() - before < MOST_SECONDS


@pytest.mark.parametrize("part", SIDE_BY_SIDE)
def test_much_work_side_by_side_ends(part):
    """
    A list of expressions is as long as a template may be; together they have one budget.
    """
    number = 19_000 // (len(part) + 2)
    before = time.process_time()
    with suppress(ExpressionError):
        render(f"{{{{ [{', '.join([part] * number)}]|length }}}}", BIG)

    assert time.process_time() - before < MOST_SECONDS


def test_all_templates_of_one_value_share_a_budget():
    with pytest.raises(ExpressionError, match="too much work"):
        render(["{{ numbers|sum }}"] * 1000, BIG)


def test_a_budget_is_spent_and_not_more():
    budget = WorkBudget(5)
    budget.spend(5)

    with pytest.raises(EvaluationError, match="too much work"):
        budget.spend()
    assert WorkBudget().left == MAX_WORK


def test_values_nested_without_end_are_refused():
    endless = []
    endless.append(endless)
    deep = json.loads("[" * 500 + "]" * 500)

    for value in (endless, deep):
        for expression in ("x", "x == x", "x|tojson", "x ~ ''", "x|unique"):
            with pytest.raises(ExpressionError):
                render(f"{{{{ {expression} }}}}", {"x": value})


# --- whatever is written ---------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
ATOMS = st.sampled_from(["a", "b", "missing", "1", "-2", "0", "2.5", "''", "'x'", "'5'", "true", "none", "[]", "{}"])


def _larger(inner):
    binary = st.sampled_from(
        ["+", "-", "*", "/", "//", "%", "**", "~", "<", "<=", "==", "!=", ">", ">=", "in", "not in", "and", "or"]
    )
    names = st.sampled_from(sorted([*FILTERS, "default", "attr"]))
    tests = st.sampled_from(sorted([*TESTS, "defined"]))
    functions = st.sampled_from(sorted(FUNCTIONS))
    return st.one_of(
        st.builds("({} {} {})".format, inner, binary, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({}|{})".format, inner, names),
        st.builds("({}|{}({}))".format, inner, names, inner),
        st.builds("({}|{}({}, {}))".format, inner, names, inner, inner),
        st.builds("({} is {})".format, inner, tests),
        st.builds("({} is {}({}))".format, inner, tests, inner),
        st.builds("{}({}, {})".format, functions, inner, inner),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("({})[{}:{}:{}]".format, inner, inner, inner, inner),
        st.builds("({}).x".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{{}: {}}}".format, inner, inner),
        st.builds("(-{})".format, inner),
        st.builds("(not {})".format, inner),
    )


def _never_breaks(call):
    try:
        return call()
    except ExpressionError:
        return None


@settings(max_examples=100, deadline=None)
@given(expression=st.recursive(ATOMS, _larger, max_leaves=10), a=JSON, b=JSON)
def test_an_expression_gives_json_or_an_expression_error(expression, a, b):
    result = _never_breaks(lambda: render(f"{{{{ {expression} }}}}", {"a": a, "b": b}))
    json.dumps(result)

    assert _never_breaks(lambda: holds(expression, {"a": a, "b": b})) in (True, False, None)


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("{}%#-|.,()[]'\"\\ab1 :=<>*/~\n\0_éud8"), max_size=30), a=JSON)
def test_a_text_gives_json_or_an_expression_error(text, a):
    for template in (text, f"{{{{{text}}}}}", f"a{{{{ {text} }}}}"):
        _never_breaks(lambda template=template: render(template, {"a": a, "b": a}))
        _never_breaks(lambda template=template: holds(template, {"a": a, "b": a}))
