"""
Every kind of token that is known by its shape, in every surrounding of a table, through every way out of the redactor.

adw does not know these tokens: no variable of the environment and no setting has them. The seed is printed with a
failure; ADW_TEST_SEED plays it again.
"""

from __future__ import annotations

import base64
import json
import random
import re

import pytest

from adws.adw_modules.redaction import token_shapes
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor, StreamRedactor
from tests import sampling
from tests.token_samples import ESCAPES, SURROUNDINGS, assert_gone, samples

FIRST = samples(random.Random(0))
KINDS = list(FIRST)


def starts_a_word(text: str) -> bool:
    """Say whether *text* is a token only where no letter or digit stands before it."""
    return " " not in text and any(shape.glue and re.match(shape.pattern, text) for shape in token_shapes.SHAPES)


def in_a_stream(redactor: Redactor, text: str, cut: int) -> str:
    reader = StreamRedactor(redactor)

    return reader.feed(text[:cut]) + reader.feed(text[cut:]) + reader.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_hidden_in_every_surrounding_by_every_way_out(kind, rng):
    """In the ordinary run each kind meets a third of the surroundings, others than the kind before it."""
    sample = samples(rng)[kind]
    redactor = Redactor()

    for name, surround in sampling.share(list(SURROUNDINGS.items()), KINDS.index(kind), 20):
        text = surround(sample.text)
        payload = json.dumps({"note": text, "n": 1}).encode()
        ways = {
            "text": redactor.redact_text(text),
            "value": json.dumps(redactor.redact({"x": [text, {text: 1}], "y": text.encode()})),
            "stored text": redactor.scrub_text(text),
            "stored JSON": redactor.scrub_json(payload.decode()),
            "stored bytes": redactor.scrub_bytes(text.encode()).decode(),
            "document": redactor.scrub_bytes(payload).decode(),
            "document in ASCII": redactor.scrub_bytes(json.dumps({"note": f"é {text}"}).encode()).decode(),
            "line of JSON": redactor.redact_text(payload.decode()),
            "stream": in_a_stream(redactor, text, rng.randrange(len(text))),
        }
        for way, output in ways.items():
            assert MASK in output, (kind, name, way, output)
            assert_gone(sample, output, f"{kind}, {name}, {way}")
        assert [json.loads(ways[way])["n"] for way in ("document", "line of JSON", "stored JSON")] == [1, 1, 1], name


def test_a_token_is_found_wherever_two_chunks_of_output_cut_it(rng):
    redactor = Redactor()
    for kind, sample in samples(rng).items():
        text = json.dumps({"x": f"word\n{sample.text}\nword"}) + "\nnext line\n"
        whole = redactor.redact_text(text)

        assert_gone(sample, whole, kind)
        for cut in range(1, len(text)):
            assert in_a_stream(redactor, text, cut) == whole, (kind, cut)


def test_of_a_line_without_end_no_cut_parts_a_token_from_the_escape_before_it(rng):
    sample = samples(rng)["ghp_"]
    redactor = Redactor()
    for escape in ESCAPES:
        text = "".join(f"{'w' * rng.randint(1, 9)}{escape}{sample.text} and more;" for _ in range(500))
        reader = StreamRedactor(redactor, limit=1024)

        out = "".join(reader.feed(text[at : at + 89]) for at in range(0, len(text), 89)) + reader.close()

        assert_gone(sample, out, escape)
        assert out == redactor.redact_text(text), escape


def test_what_stands_around_a_token_stays_as_it_is():
    token = "ghp_" + "a1B2" * 9
    texts = {
        f'{{"x": "a\\n{token}\\nb"}}': f'{{"x": "a\\n{MASK}\\nb"}}',
        f"a%0A{token}%0Ab": f"a%0A{MASK}%0Ab",
        f"a\x1b[31m{token}\x1b[0m b": f"a\x1b[31m{MASK}\x1b[0m b",
        f"https%3A%2F%2Fbob%3A{'p' * 12}%40host%2Fa": f"https%3A%2F%2Fbob%3A{MASK}%40host%2Fa",
        f"hooks.slack.com\\/services\\/T0\\/B0\\/{'x' * 20} b": f"hooks.slack.com\\/services\\/{MASK} b",
    }

    assert {text: Redactor().redact_text(text) for text in texts} == texts


def test_a_token_inside_another_word_is_no_token(rng):
    for kind, sample in samples(rng).items():
        if starts_a_word(FIRST[kind].text):
            text = sample.text
            assert Redactor().scrub_text(f"wordx{text}").startswith(f"wordx{text[:4]}"), kind


def test_every_shape_of_the_table_has_a_sample(rng):
    texts = [sample.text for sample in samples(rng).values()]

    lonely = [
        shape.pattern
        for shape in token_shapes.SHAPES
        if not any(
            re.search(shape.pattern, each)
            for text in texts
            for each in (text, text.lower(), f"{text[:20]}\\n{text[21:]}")
        )
    ]

    assert lonely == []


def words(rng: random.Random) -> list[str]:
    """Return what is long, looks drawn by a machine, and is no secret."""
    sha = "".join(rng.choices("0123456789abcdef", k=64))
    name = "".join(rng.choices("abcdefijlmnoqrtuvwyzABCDEFHIJLMNOPQRTUVWYZ", k=30))
    return [
        sha,
        sha[:40],
        sha[:40].upper(),
        f"{sha[:8]}-{sha[8:12]}-{sha[12:16]}-{sha[16:20]}-{sha[20:32]}",
        f"sha256:{sha}",
        f"sha512-{name}{name}==",
        f"/srv/app/{name}/{sha[:8]}/{name.lower()}",
        f"tests/unit/{name}.py::Test{name}",
        f"C:\\Users\\{name}\\n{sha[:12]}",
        f"https://example.com/{name}?page=2&after={sha[:12]}%3D%3D",
        f"\\n{name}_{sha[:20]} %0A{name} \x1b[31m{name}\x1b[0m",
        f"msg_01{name[:22]} toolu_01{name[:22]} req_011{name[:20]}",
    ]


def test_hashes_ids_names_and_paths_are_stored_as_they_are(rng):
    redactor = Redactor()

    for _ in range(200):
        for word in words(rng):
            payload = json.dumps({"note": word}).encode()
            assert redactor.scrub_bytes(payload) is payload, word
            assert redactor.scrub_text(word) == word


def test_base64_of_ordinary_text_is_stored_as_it_is(rng):
    redactor = Redactor()

    for word in words(rng):
        for text in (word, f"{word}\n" * 20):
            coded = base64.b64encode(text.encode()).decode()
            assert redactor.scrub_text(coded) == coded


def test_what_only_resembles_a_token_is_stored_as_it_is():
    for text in [
        *("highs_and_lows_of_the_year_2026", "graphs_directory_of_things", "the task-management-of-things-1234567890"),
        *("C:\\highs_and_lows_of_the_year", "100%ighs_and_lows_of_it", "basic package-10 and basic docs/setup-2.md"),
        *("https://example.com/?code=ABCDEF12&key=GERMANY1", "ssh://org-1234567890123@github.com/acme/shop"),
        *("a bearer of news", "npm_config_loglevel=warn", "risk-assessment0123456789abcdef", "xoxo-", "monkey_live_x"),
    ]:
        payload = json.dumps({"note": text, "inner": json.dumps({"x": f"\n{text}"})}).encode()

        assert Redactor().scrub_bytes(payload) is payload, text
        assert Redactor().scrub_text(text) == text, text
