"""
A thousand secrets are planted in a thousand places, and none comes out; ordinary text comes out as it went in.

The seed is printed with a failure; ADW_TEST_SEED plays it again.
"""

from __future__ import annotations

import json
import random

import pytest

from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor, StreamRedactor
from tests.planted import WRITINGS, assert_hidden, draw, filler, make_secret

COUNT = 1000
#: Ways to write a secret after which it is not whole: documents are not searched for those.
CUT = {"first characters cut", "last characters cut", "ansi", "wrapped"}


@pytest.fixture(scope="module")
def planted(seed):
    rng = random.Random(seed)
    secrets = [make_secret(rng) for _ in range(COUNT)]

    return rng, secrets, Redactor(secrets)


def test_no_planted_secret_comes_out_of_a_text(planted, repeat):
    rng, secrets, redactor = planted
    each = repeat(2, len(WRITINGS))

    for secret in secrets:
        for name, write in rng.sample(sorted(WRITINGS.items()), each):
            text = f"{filler(rng)} {write(rng, secret)} {filler(rng)}"
            assert_hidden(secret, redactor.redact_text(text), name)


def test_no_planted_secret_comes_out_of_a_nested_value(planted):
    rng, secrets, redactor = planted

    for secret in secrets:
        value = {"a": [{"b": [secret, [filler(rng), {secret: 1}]]}], "c": (secret.encode(), 5), f"k {secret} k": None}
        for name, write in rng.sample(sorted(WRITINGS.items()), 4):
            value[name] = {"deep": [[{"x": write(rng, secret)}]]}
        assert_hidden(secret, json.dumps(redactor.redact(value), ensure_ascii=False), "nested value")


def test_no_planted_secret_comes_out_of_a_stream(planted):
    rng, secrets, redactor = planted

    for secret in secrets:
        name = rng.choice(sorted(WRITINGS))
        text = f"{filler(rng)}\n{filler(rng)} {WRITINGS[name](rng, secret)} {filler(rng)}\n{filler(rng)}"
        reader = StreamRedactor(redactor, limit=rng.choice([1024, 65536]))
        out, at = "", 0
        while at < len(text):
            size = rng.randint(1, 12)
            out += reader.feed(text[at : at + size])
            at += size
        assert_hidden(secret, out + reader.close(), f"stream, {name}")


def test_no_planted_secret_comes_out_of_bytes_and_json_stays_json(planted):
    rng, secrets, redactor = planted

    for secret in secrets:
        whole = sorted(set(WRITINGS) - CUT)
        value = {name: WRITINGS[name](rng, secret) for name in rng.sample(whole, 3)} | {"n": rng.random()}
        payload = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=1).encode()
        scrubbed = json.loads(redactor.scrub_bytes(payload))
        assert scrubbed["n"] == value["n"]
        assert_hidden(secret, "\n".join(str(item) for item in scrubbed.values()), "bytes")


CLEAN = """\
2026-01-31T09:00:00.000000Z INFO 1a2b3c4d plan Phase started attempt=1 max_attempts=5
commit 9fceb02d0ae598e95dc970b74767f19372d61af8 (HEAD -> feature-issue-42-adw-1a2b3c4d-add-login)
Author: A Person <person@example.com>
index 83db48f..bf2a3c1 100644
request_id=550e8400-e29b-41d4-a716-446655440000 took 12.5 ms
{"adw_id": "1a2b3c4d", "issue_number": 42, "current_state": "planning", "revision": 7, "fence": 3}
worktree_path=/srv/app/trees/1a2b3c4d branch_name=feat/sk-some-long-branch-name-of-a-person
"usage": {"input_tokens": 1234, "output_tokens": 567, "cache_read_input_tokens": 89012}
max_tokens=4096 token_count: 17 tokens_used=99 primary_key=id keyboard=qwerty monkey=george
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 pulled
SyntaxError: unexpected token: identifier
KeyError: 'current_state'
File "/srv/app/adws/adw_modules/state.py", line 42, in load
https://github.com/owner/name/pull/17#issuecomment-1234567890
git@github.com:owner/name.git and ssh://git@github.com/owner/name.git
https://example.com:8443/path/to/page?page=2&sort=asc&key_id=5
pip install python-json-logger==4.2.0 --no-deps --quiet
pypi-publish-workflow-for-releases npm_config_loglevel=warn
tests/unit/redaction/test_redaction.py::test_a_name PASSED [ 42%]
The password policy requires twelve characters. Basic understanding of tokens helps.
author=bob authority=none secretary=alice passwordless=true cookiecutter: template
100%|██████████| 5/5 [00:00<00:00, 10.2it/s] C:\\Users\\x%20y &amp; done
event_id=1a2b3c4d.7.0 idempotency_key=create-pr-42 cache_key=v2-linux-abc123def456
-----BEGIN CERTIFICATE-----
Zeile mit Umlauten: äöüß, 日本語, emoji-free
"""


def test_ordinary_text_comes_out_as_it_went_in(planted):
    _, _, redactor = planted

    for line in (*CLEAN.splitlines(), CLEAN):
        assert Redactor().redact_text(line) == line
        assert redactor.redact_text(line) == line
        assert MASK not in json.dumps(redactor.redact({"text": line}))


def test_random_ids_commits_and_paths_come_out_as_they_went_in(rng):
    redactor = Redactor([make_secret(rng) for _ in range(10)])

    for _ in range(COUNT):
        sha = draw(rng, "0123456789abcdef", 40, 40)
        # Without the letters of `ghp_`, `sk-`, `xox-` and the like: by chance those would be tokens.
        path = "/".join(draw(rng, "abcdefijlmnoqrtuvwyz_-.", 1, 20) for _ in range(5))
        text = f"{sha} {sha[:7]} /{path} adw-{sha[:8]} rev={rng.randint(0, 10**9)} v{rng.randint(0, 9)}.1"
        assert redactor.redact_text(text) == text
