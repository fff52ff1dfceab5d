"""Bytes as JSON, or why not."""

from __future__ import annotations

import pytest

from adws.adw_triggers import delivery
from adws.adw_triggers.delivery import Malformed, parse


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"a=1", "0 fields named payload"),
        (b"payload={}&payload={}", "2 fields named payload"),
        (b"&".join([b"a=1"] * 17), "cannot be read"),
        (b"payload=%ff", "cannot be read"),
        (b"payload=", "no JSON"),
    ],
)
def test_a_form_without_one_payload_is_refused(body, said):
    with pytest.raises(Malformed, match=said):
        parse("application/x-www-form-urlencoded", body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff{}", "not UTF-8: byte 0"),
        (b"\xef\xbb\xbf{}", "no JSON"),
        (b"[]", "no JSON object"),
        (b'"text"', "no JSON object"),
        (b'{"a": 1, "a": 1}', "the key 'a' twice"),
        (b'{"a": {"b": {}, "c": 1, "b": 2}}', "the key 'b' twice"),
        (b'{"a": NaN}', "NaN, which is no number"),
        (b'{"a": -Infinity}', "-Infinity, which is no number"),
        (b'{"a": ' + b"1" * 5000 + b"}", "number that is too long"),
        (b"{} {}", "no JSON"),
    ],
)
def test_what_is_no_payload_is_refused_in_one_sentence(body, said):
    with pytest.raises(Malformed, match=said) as caught:
        parse("application/json", body)
    assert "\n" not in str(caught.value)


def test_a_key_that_comes_twice_among_many_is_found_at_once():
    many = b",".join(b'"%d":0' % number for number in range(200_000))

    with pytest.raises(Malformed, match="the key '199999' twice"):
        parse("", b"{" + many + b',"199999":0}')


def test_another_content_type_is_refused():
    with pytest.raises(Malformed, match="'text/plain': set the hook to application/json"):
        parse("text/plain", b"{}")


def nested(depth: int) -> bytes:
    return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


def test_depth_is_limited():
    assert parse("", nested(delivery.MAX_DEPTH))
    for body in (nested(delivery.MAX_DEPTH + 1), b"[" * 2_000_000, b'{"a":[' * 500_000):
        with pytest.raises(Malformed, match="deeper than 64"):
            parse("", body)


def test_brackets_beside_each_other_and_in_texts_are_not_depth():
    wide = b'{"a": [' + b",".join([b"[{}]"] * 200) + b"]}"
    texts = b'{"a": "' + b'[{\\"' * 200 + b'", "b": {}}'

    assert len(parse("", wide)["a"]) == 200
    assert parse("", texts)["b"] == {}


def test_a_text_that_never_ends_is_refused_and_not_searched_for_ever():
    with pytest.raises(Malformed, match="no JSON"):
        parse("", b'{"a": "' + b"\\x" * 500_000 + b"[" * 60)
