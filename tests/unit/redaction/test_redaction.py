"""Redaction by name, by looks and by value: what goes, and what stays."""

from __future__ import annotations

import base64
import dataclasses
import json
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adws.adw_modules import document
from adws.adw_modules.redaction import patterns
from adws.adw_modules.redaction import redactor as redaction_redactor
from adws.adw_modules.redaction.known_values import parts_of
from adws.adw_modules.redaction.patterns import MASK, is_secret_name
from adws.adw_modules.redaction.redactor import Redactor, StreamRedactor
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.model import (
    RUNNERS,
    Gate,
    LoopSpec,
    NextRule,
    PhaseSpec,
    RetryRule,
    RetrySpec,
    SinkSpec,
    StepSpec,
    Timeouts,
)
from tests.planted import assert_hidden

SECRET = "Zk3!vQ9x/Lm2+Tt7pR5w=Yb8"
PLAIN_SECRET = "Zk3vQ9xLm2Tt7pR5wYb8HnJ4"


def test_a_name_of_a_secret_is_recognised_however_it_is_spelled():
    for name in [
        *("password", "PASSWORD", "db.password", "userPassword", "DB_PASSWORD_2", "passwd", "passphrase", "Pwd"),
        *("secret", "client_secret", "clientSecret", "secret_id", "SECRET_KEY_BASE", "secrets"),
        *("token", "GITHUB_TOKEN", "githubToken", "access-token", "x-auth-token", "access_tokens"),
        *("api_key", "API-KEY", "apiKey", "APIKey", "apikey", "X-Api-Key", "private_key", "stripe_key", "FOO_KEY"),
        *("authorization", "Proxy-Authorization", "cookie", "Set-Cookie", "credentials", "dsn", "connectionString"),
        *("AWS_SECRET_ACCESS_KEY", "_authToken", "_auth", "GH_PAT", "jwt"),
    ]:
        assert is_secret_name(name), name


def test_a_harmless_name_is_left_alone():
    for name in [
        *("monkey", "keyboard", "key", "primary_key", "PRIMARY_KEY", "PUBLIC_KEY", "idempotency_key", "cache_key"),
        *("token_count", "tokens_used", "max_tokens", "input_tokens", "tokenCount", "tokenizer", "tokens"),
        *("secretary", "passwordless", "password_length", "token_file", "has_token", "is_secret", "token_id"),
        *("PWD", "OLDPWD", "pwd", "author", "authority", "path", "patch", "SSH_AUTH_SOCK", "compass", "", "123", "é"),
    ]:
        assert not is_secret_name(name), name


def test_a_value_after_a_secrets_name_in_text_is_hidden():
    for text, clean in [
        ("password=hunter2", f"password={MASK}"),
        ("password = hunter2, user=bob", f"password = {MASK}, user=bob"),
        ("(password=hunter2)", f"(password={MASK})"),
        ("DB_PASSWORD='two words' x", f"DB_PASSWORD='{MASK}' x"),
        ('{"api_key": "a\\"b", "n": 1}', f'{{"api_key": "{MASK}", "n": 1}}'),
        ('"{\\"token\\": \\"abc\\", \\"n\\": 1}"', f'"{{\\"token\\": \\"{MASK}\\", \\"n\\": 1}}"'),
        ("{'secret': b'xyz'}", f"{{'secret': b'{MASK}'}}"),
        ('token="not closed\nnext line', f'token="{MASK}\nnext line'),
        ('token="not closed', f'token="{MASK}'),
        ('token="a\nb"', f'token="{MASK}\nb"'),
        ("run --token abc --verbose", f"run --token {MASK} --verbose"),
        ("run --token='a b' --verbose", f"run --token='{MASK}' --verbose"),
        ("run --password 'a b' now", f"run --password '{MASK}' now"),
        ("run --token --verbose", "run --token --verbose"),
        ("Authorization: token a b c\nHost: h", f"Authorization: {MASK}\nHost: h"),
        ("-H 'Cookie: a=1; b=2' -v", f"-H 'Cookie: {MASK}' -v"),
        ("password: hunter2", f"password: {MASK}"),
        ("token: 8sd7f6a8s7df6a", f"token: {MASK}"),
        ("key => x, secret => y", f"key => x, secret => {MASK}"),
        ("the token is 8sd7f6a8s7df6as8d7f.", f"the token is {MASK}."),
        ("https://h/x?access_token=abc&page=2", f"https://h/x?access_token={MASK}&page=2"),
        ("https://h/x?sig=abcdefgh&page=2", f"https://h/x?sig={MASK}&page=2"),
        ("x" * 300 + "_token=abc", "x" * 300 + f"_token={MASK}"),
        ('password=",abc" x', f'password="{MASK}" x'),
        ('{"password": ", \\"b"}', f'{{"password": "{MASK}"}}'),
        ('{"x": "line\\npassword=hunter2"}', f'{{"x": "line\\npassword={MASK}"}}'),
        ('{"x": "say \\"password=hunter2\\" twice"}', f'{{"x": "say \\"password={MASK}\\" twice"}}'),
        ('{"x": "\\"Authorization: token a b\\""}', f'{{"x": "\\"Authorization: {MASK}\\""}}'),
        ('{"x": "\\"https://h/?key=abcdefgh\\""}', f'{{"x": "\\"https://h/?key={MASK}\\""}}'),
    ]:
        assert Redactor().redact_text(text) == clean, text


def test_sentences_and_empty_values_after_a_secrets_name_stay():
    for text in [
        "unexpected token: identifier",
        "token: )",
        "secret: ",
        "password=",
        "password=None api_key=null token=true",
        "password={",
        "credentials: {user: x}",
        f"password={MASK}",
        f"(token={MASK}).",
        "the password is required",
        "token expired yesterday",
        "basic understanding of authentication",
        '{"x": "first set GITHUB_TOKEN=", "n": 1}',
        '["the last word is token:", "n"]',
        '{"x": "run it with --token "}',
        '{"x": "{\\"y\\": \\"password=\\", \\"n\\": 1}"}',
    ]:
        assert Redactor().redact_text(text) in {text, text.replace("={", f"={MASK}")}, text


def test_a_token_with_terminal_codes_inside_is_hidden():
    assert Redactor().redact_text("a ghp_abcd\x1b[1mefgh1234\x1b[0mijkl z") == f"a {MASK} z"


def test_an_aws_secret_next_to_its_key_id_is_hidden_and_a_commit_alone_is_not():
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzzKEY"

    assert secret not in Redactor().redact_text(f"AKIAABCDEFGHIJKLMNOP {secret}")
    assert (
        Redactor().redact_text("9fceb02d0ae598e95dc970b74767f19372d61af8") == "9fceb02d0ae598e95dc970b74767f19372d61af8"
    )


@pytest.mark.parametrize("newline", ["\n", "\\n", "\r\n"])
def test_a_private_key_is_hidden_with_its_frame(newline):
    lines = ["-----BEGIN RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA", "x" * 64, "-----END RSA PRIVATE KEY-----"]

    assert Redactor().redact_text(f"a {newline.join(lines)} z") == f"a {MASK} z"


def test_a_private_key_that_is_cut_off_is_hidden_to_the_end():
    assert Redactor().redact_text("a -----BEGIN PRIVATE KEY-----\nMIIEpAIB\nAAKC") == f"a {MASK}"


def test_a_public_key_stays():
    text = "-----BEGIN PUBLIC KEY-----\nMIIBIjANBg\n-----END PUBLIC KEY-----"

    assert Redactor().redact_text(text) == text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgres://adw:pw@db/x", f"postgres://adw:{MASK}@db/x"),
        ("postgres://adw:p@ss:w@db/x", f"postgres://adw:{MASK}@db/x"),
        ("https://a1b2c3d4e5f6a7b8@github.com/o/r", f"https://{MASK}@github.com/o/r"),
        ("https://bob@github.com/o/r", "https://bob@github.com/o/r"),
        ("ssh://git@github.com:22/o/r", "ssh://git@github.com:22/o/r"),
        ("Bearer abcdef123456.xyz", f"Bearer {MASK}"),
        ("basic dXNlcjpwYXNzd29yZDE=", f"basic {MASK}"),
        ("https://hooks.slack.com/services/T0/B0/abcdefgh", f"https://hooks.slack.com/services/{MASK}"),
    ],
)
def test_credentials_in_urls_and_schemes_are_hidden(text, clean):
    assert Redactor().redact_text(text) == clean


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("aB3" * 6, True),
        ("short1", False),
        ("internationalization", False),
        ("abcdefgh1", False),
        ("a1b2c3d4", True),
        ("abcdefgh-1", True),
        ("abcdefghijklmnopqrstuvwx", True),
        ("12345678", False),
    ],
)
def test_opaque_is_what_a_machine_made(value, expected):
    assert patterns.is_opaque(value) is expected


# --- known values ----------------------------------------------------------------------------------------------


def spelled(secret):
    raw = secret.encode()
    for shift in range(3):
        coded = base64.b64encode(b"x" * shift + raw + b"y")
        yield f"base64 {shift}", coded.decode()
        yield f"urlsafe {shift}", base64.urlsafe_b64encode(b"x" * shift + raw).decode().rstrip("=")
    yield "hex", raw.hex()
    yield "HEX", raw.hex().upper()
    yield "percent", quote(secret, safe="")
    yield "percent lower", quote(secret, safe="").lower() if secret.islower() else quote(secret, safe="")
    yield "all percent", "".join(f"%{byte:02x}" for byte in raw)
    yield "percent twice", quote(quote(secret, safe=""), safe="")
    yield "json", json.dumps(f"a{secret}b")
    yield "json twice", json.dumps(json.dumps(f"a{secret}b"))
    yield "reversed", secret[::-1]
    yield "ansi", "\x1b[1m".join(secret)
    yield "lines", secret[:5] + "\n  " + secret[5:11] + "\r\n" + secret[11:]
    yield "wrapped base64", "\n".join(base64.encodebytes(raw * 1).decode()[at : at + 8] for at in range(0, 40, 8))
    yield "html", secret.replace("+", "&#x2b;").replace("'", "&#39;").replace("&", "&amp;", 1)
    yield "bytes repr", "".join(f"\\x{byte:02x}" for byte in raw)
    yield "zero width", "\u200b".join(secret)


@pytest.mark.parametrize("secret", [SECRET, PLAIN_SECRET, 'with "quotes" and \\ and\ttabs', "päßwörd-with-ümlauts"])
def test_no_piece_of_a_known_secret_comes_out_in_any_spelling(secret):
    redactor = Redactor([secret])

    for name, text in spelled(secret):
        if name == "html" and "&#x2b;" in text:
            continue
        clean = redactor.redact_text(f"before {text} after")
        assert MASK in clean, name
        assert clean.startswith("before "), name
        assert clean.endswith(" after"), name
        assert len(clean) < len("before  after") + 3 * len(MASK) + 12, (name, clean)


def test_a_part_of_twelve_characters_is_hidden_and_one_of_eleven_is_not():
    redactor = Redactor([PLAIN_SECRET])

    assert redactor.redact_text(f"<{PLAIN_SECRET[5:17]}>") == f"<{MASK}>"
    assert redactor.redact_text(f"<{PLAIN_SECRET[-12:]}>") == f"<{MASK}>"
    assert redactor.redact_text(f"<{PLAIN_SECRET[5:16]}>") == f"<{PLAIN_SECRET[5:16]}>"


def test_only_the_secret_is_hidden_not_what_stands_around_it():
    text = f"one\ntwo {PLAIN_SECRET[:9]}\n   {PLAIN_SECRET[9:]}\nthree%20four"

    assert Redactor([PLAIN_SECRET]).redact_text(text) == f"one\ntwo {MASK}\nthree%20four"


def test_a_secret_of_eight_characters_is_hidden_whole_also_in_base64_and_hex():
    redactor = Redactor(["s3cr3t-8"])

    assert redactor.redact_text("xs3cr3t-8x") == f"x{MASK}x"
    assert redactor.redact_text(b"s3cr3t-8".hex()) == MASK
    assert "czNjcjN0LT" not in redactor.redact_text(base64.b64encode(b"s3cr3t-8").decode())


def test_a_shorter_secret_is_hidden_as_a_word_only():
    assert Redactor(["cat"]).redact_text("cat catalogue (cat) tomcat") == f"{MASK} catalogue ({MASK}) tomcat"


def test_what_is_part_of_the_mask_cannot_be_a_secret():
    assert Redactor(["redacted", "", "  ", "[", "Redact"]).redact_text("[redacted] redacted") == "[redacted] redacted"


def test_of_a_url_with_a_password_only_the_password_is_looked_for_in_parts():
    redactor = Redactor(["postgresql://adw:Zk3vQ9xLm2Tt7p@localhost:5432/adw"])

    assert redactor.redact_text("connected to localhost:5432/adw") == "connected to localhost:5432/adw"
    assert redactor.redact_text("pw Zk3vQ9xLm2Tt7p") == f"pw {MASK}"
    assert redactor.redact_text("got postgresql://adw:Zk3vQ9xLm2Tt7p@localhost:5432/adw") == f"got {MASK}"


def test_of_a_key_file_its_frame_is_not_looked_for():
    body = "MIIEpAIBAAKCAQEAx7Zk3vQ9xLm2Tt7pR5w"
    redactor = Redactor([f"-----BEGIN PRIVATE KEY-----\n{body[:20]}\n{body[20:]}\n-----END PRIVATE KEY-----\n"])

    assert redactor.redact_text("-----BEGIN CERTIFICATE-----") == "-----BEGIN CERTIFICATE-----"
    assert redactor.redact_text("line " + body[10:30]) == f"line {MASK}"


def test_of_json_only_the_fields_named_like_secrets_are_looked_for():
    account = {"type": "service_account", "keys": [{"private_key": "Zk3vQ9xLm2Tt7pR5w"}], "password": 5}

    assert parts_of(json.dumps(account)) == ("Zk3vQ9xLm2Tt7pR5w",)
    assert parts_of("{not json at all") == ("{not json at all",)
    assert parts_of("[" * 100_000) == ("[" * 100_000,)
    assert Redactor(['{"password": "eightchr"}']).redact_text("eightchr service_account") == f"{MASK} service_account"
    assert Redactor(['{"password": "seven77"}']).redact_text("seven77") == "seven77"


def test_a_secret_made_of_one_character_does_not_hide_lines_of_it():
    redactor = Redactor(["-" * 40, "0" * 20])

    assert redactor.redact_text("-" * 30) == "-" * 30
    assert redactor.redact_text("-" * 40) == MASK


# --- values ----------------------------------------------------------------------------------------------------


def test_nested_values_are_redacted_by_name_pattern_and_value():
    value = {
        "phase": "plan",
        "env": {"GITHUB_TOKEN": "abc", "HOME": "/home/x", "N": 3, "ok": True, "none": None},
        "list": ["--password", "hunter2", "--user", "bob", {"url": "https://u:p@h/"}],
        "headers": [["Authorization", "x"], ["Accept", "json"]],
        "variables": [{"name": "NPM_TOKEN", "value": "x"}, {"name": "LANG", "value": "C"}],
        "credentials": {"user": "u"},
        "password": None,
        "secret": True,
        "token": "",
        "pin_password": 1234,
        PLAIN_SECRET: 1,
        "x" + PLAIN_SECRET: 2,
        "b": PLAIN_SECRET.encode(),
        "t": ("ghp_" + "a1" * 10, 1.5),
    }

    assert Redactor([PLAIN_SECRET]).redact(value) == {
        "phase": "plan",
        "env": {"GITHUB_TOKEN": MASK, "HOME": "/home/x", "N": 3, "ok": True, "none": None},
        "list": ["--password", MASK, "--user", "bob", {"url": f"https://u:{MASK}@h/"}],
        "headers": [["Authorization", MASK], ["Accept", "json"]],
        "variables": [{"name": "NPM_TOKEN", "value": MASK}, {"name": "LANG", "value": "C"}],
        "credentials": MASK,
        "password": None,
        "secret": True,
        "token": "",
        "pin_password": MASK,
        MASK: 1,
        f"x{MASK}": 2,
        "b": MASK,
        "t": [MASK, 1.5],
    }


def test_an_option_after_a_secret_option_is_not_its_value():
    assert Redactor().redact(["--token", "--verbose", "x"]) == ["--token", "--verbose", "x"]


def test_two_secret_keys_stay_two_entries():
    redactor = Redactor(["first-value-1", "second-value-2", "third-value-3"])

    assert redactor.redact({"first-value-1": 1, "second-value-2": 2, "third-value-3": 3}) == {
        MASK: 1,
        f"{MASK}#2": 2,
        f"{MASK}#3": 3,
    }


def test_a_number_that_is_a_known_secret_is_hidden():
    assert Redactor(["8675309042"]).redact({"n": 8675309042, "m": 8675309, "f": 0.5}) == {
        "n": MASK,
        "m": 8675309,
        "f": 0.5,
    }


def test_a_small_number_is_hidden_when_a_short_secret_is_that_number():
    value = {"pin": 4711, "port": 9100, "list": [4711, 1], "big": -12345678}

    assert Redactor(["4711"]).redact(value) == value | {"pin": MASK, "list": [MASK, 1]}
    assert Redactor(["12345678"]).redact(value) == value | {"big": MASK}
    assert Redactor().redact(value) == value


class Rude:
    def __str__(self):
        raise RuntimeError("no")


def test_redact_never_raises_and_ends_on_cycles_and_depth():
    loop: list[object] = [1]
    loop.append(loop)
    deep: object = "end"
    for _ in range(200):
        deep = [deep]
    huge = 10**5000

    assert Redactor().redact(loop) == [1, redaction_redactor.CYCLE]  # type: ignore[arg-type]  # on purpose
    assert redaction_redactor.TOO_DEEP in str(Redactor().redact(deep))  # type: ignore[arg-type]  # on purpose
    rude = "<Rude: no text, RuntimeError>"
    assert Redactor().redact({Rude(): Rude(), 5: {1, 2}}) == {rude: rude, "5": "{1, 2}"}  # type: ignore[dict-item]  # on purpose
    assert Redactor(["12345678"]).redact(huge) == huge


def test_the_same_list_twice_is_no_cycle():
    shared = ["x"]

    assert Redactor().redact([shared, shared]) == [["x"], ["x"]]


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    "password",
                    "token",
                    "=",
                    ": ",
                    '"',
                    "'",
                    "\\",
                    " ",
                    "--",
                    "\n",
                    ",",
                    "]",
                    "[",
                    MASK,
                    "x",
                    "abc123def4567890",
                ),
                *(
                    "Bearer ",
                    "://",
                    "@",
                    "u:p",
                    "?key=",
                    "ghp_abcdefghij",
                    PLAIN_SECRET,
                    PLAIN_SECRET[:13],
                    "\x1b[1m",
                    "%41",
                ),
                *(
                    "-----BEGIN PRIVATE KEY-----",
                    "-----END PRIVATE KEY-----",
                    "Authorization",
                    "&",
                    ";",
                    "{",
                    "}",
                    "is ",
                ),
            ]
        ),
        max_size=12,
    ).map("".join)
)
def test_redacting_twice_changes_nothing(text):
    redactor = Redactor([PLAIN_SECRET])
    once = redactor.redact_text(text)

    assert redactor.redact_text(once) == once
    assert PLAIN_SECRET not in once


def test_looking_again_has_an_end(monkeypatch):
    monkeypatch.setattr(redaction_redactor, "_ROUNDS", 1)

    assert Redactor().redact_text("password=x") == f"password={MASK}"


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_redacting_any_json_gives_json(value):
    json.dumps(Redactor([PLAIN_SECRET]).redact(value))


# --- bytes -----------------------------------------------------------------------------------------------------


def test_clean_bytes_come_back_as_the_same_object():
    payload = json.dumps({"adw_id": "1a2b3c4d", "token": "abc", "n": 12345678}).encode()

    assert Redactor([SECRET, "short-on"]).scrub_bytes(payload) is payload
    assert Redactor().scrub_bytes(payload) is payload


@pytest.mark.parametrize(
    "secret", [SECRET, 'quo"te\\back', "eight-ch", "line\nbreak-secret", "päßwörd-ümlaut", "x", "12345678"]
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_scrubbed_json_is_json_without_the_secret(secret, ascii_only):
    value = {"a": f"x{secret}y", secret: ["\n" + secret, base64.b64encode(secret.encode()).decode()], "n": 123456789012}
    payload = json.dumps(value, ensure_ascii=ascii_only, indent=1).encode()

    scrubbed = Redactor([secret]).scrub_bytes(payload)

    read = json.loads(scrubbed)
    assert read["n"] == 123456789012
    if len(secret) >= 8:
        assert read["a"] == f"x{MASK}y"
        assert secret not in str(read["a"]) + "".join(key for key in read if key != "n")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f'{{"{PLAIN_SECRET}": 1}}', id="a name"),
        pytest.param(f'[1, {{"a": ["{PLAIN_SECRET}"]}}]', id="in lists"),
        pytest.param("[" * 900 + f'"{PLAIN_SECRET}"' + "]" * 900, id="deep"),
    ],
)
def test_json_is_scrubbed_wherever_the_secret_stands_in_it(text):
    assert Redactor([PLAIN_SECRET]).scrub_json(text) == text.replace(PLAIN_SECRET, MASK)


def test_a_secret_that_only_seems_to_be_there_leaves_json_as_it_is():
    payload = b'{"a": "\\nabcdefgh"}'

    assert Redactor(["nabcdefgh"]).scrub_bytes(payload) is payload


def test_bytes_that_are_no_json_are_scrubbed_too():
    assert (
        Redactor([PLAIN_SECRET]).scrub_bytes(b"\xff " + PLAIN_SECRET.encode() + b" \xfe")
        == b"\xff " + MASK.encode() + b" \xfe"
    )


def in_json(text, layers):
    for _ in range(layers):
        text = json.dumps({"x": text})
    return text


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "secret", [PLAIN_SECRET, 'Tür "5"\\Schlüssel-€', "say 'it' and \"it\" é-4711", "line one\nline two 4711"]
)
def test_text_in_text_in_json_is_looked_through(secret, layers):
    """What people said may be JSON itself: each layer of it escapes the escapes of the one inside."""
    scrubbed = Redactor([secret]).scrub_bytes(in_json(secret, layers).encode())

    for _ in range(layers):
        scrubbed = json.loads(scrubbed)["x"]
    assert scrubbed == MASK


@pytest.mark.parametrize(
    ("written", "escaped"),
    [("/", "\\/"), ("&", "\\u0026"), ("<", "\\u003C"), ("\\u00e4\\u00fc", "\\u00E4\\u00FC"), ("Z", "\\u005a")],
)
def test_json_that_others_escape_more_than_they_have_to_is_looked_through(written, escaped):
    secret = 'Zk3/vQ9<x>L&m"äü2'
    payload = json.dumps({"x": secret}).replace(written, escaped).encode()
    assert escaped.encode() in payload

    assert json.loads(Redactor([secret]).scrub_bytes(payload)) == {"x": MASK}


@pytest.mark.parametrize(("written", "escaped"), [("/", "\\/"), ("!", "\\u0021")])
def test_so_is_it_for_a_value_that_json_need_not_escape_at_all(written, escaped):
    payload = json.dumps({"x": SECRET}).replace(written, escaped).encode()

    assert json.loads(Redactor([SECRET]).scrub_bytes(payload)) == {"x": MASK}


def test_a_value_in_codes_of_bytes_is_not_stored():
    payload = json.dumps({"x": "".join(f"\\x{byte:02x}" for byte in PLAIN_SECRET.encode())}).encode()

    assert json.loads(Redactor([PLAIN_SECRET]).scrub_bytes(payload)) == {"x": MASK}


@pytest.mark.parametrize("secret", ["Grüße-an-'alle'-\"Häuser\"", "back\\slash-é-4711"])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("write", [repr, lambda secret: repr(secret.encode()), lambda secret: secret[::-1]])
def test_a_value_written_by_python_or_reversed_is_not_stored(secret, ascii_only, write):
    payload = json.dumps({"x": write(secret)}, ensure_ascii=ascii_only).encode()

    scrubbed = json.loads(Redactor([secret]).scrub_bytes(payload))["x"]

    assert MASK in scrubbed
    assert_hidden(secret, scrubbed, "a value in JSON")


def test_half_a_character_beside_a_secret_is_stored_as_it_was():
    """JSON can hold a lone surrogate as an escape, UTF-8 cannot."""
    payload = json.dumps({"a": f"\ud800 {PLAIN_SECRET} ü"}).encode()
    mixed = payload.replace(b"\\u00fc", "ü".encode())

    assert json.loads(Redactor([PLAIN_SECRET]).scrub_bytes(payload)) == {"a": f"\ud800 {MASK} ü"}
    assert json.loads(Redactor([PLAIN_SECRET]).scrub_bytes(mixed)) == {"a": f"\ud800 {MASK} ü"}


BODY = "abcdefghijklmnopqrstuvwxyz0123456789"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----"
UNKNOWN_TOKENS = [
    *(f"gh{kind}_{BODY}" for kind in "pousr"),
    *(f"github_pat_{BODY}", f"glpat-{BODY}", f"sk-ant-api03-{BODY}", f"sk-proj-{BODY}", f"sk-{BODY}"),
    *("AKIAIOSFODNN7EXAMPLE", f"xoxb-{BODY}", f"xapp-{BODY}", f"AIza{BODY}", f"eyJ{BODY}.eyJ{BODY}.{BODY}", PEM),
]


def test_a_token_nobody_knows_is_taken_out_of_names_and_strings_of_json():
    """Every kind, after everything: tests/unit/redaction/test_redaction_surroundings.py."""
    for token in UNKNOWN_TOKENS:
        payload = json.dumps({"note": f"line\n{token}\nend", token: [token], "n": 1.50}, indent=1).encode()

        scrubbed = Redactor().scrub_bytes(payload)

        assert json.loads(scrubbed) == {"note": f"line\n{MASK}\nend", MASK: [MASK], "n": 1.5}, token
        assert b"1.5" in scrubbed
        assert Redactor().scrub_bytes(scrubbed) == scrubbed


@pytest.mark.parametrize("password", ["hunter2", "p@ss", "ümlaut", "back\\slash"])
def test_the_password_of_a_url_is_not_stored(password):
    payload = json.dumps({"remote": f"https://bob:{password}@git.example.com/a/b.git"}).encode()

    scrubbed = Redactor().scrub_bytes(payload)

    assert json.loads(scrubbed) == {"remote": f"https://bob:{MASK}@git.example.com/a/b.git"}
    assert Redactor().scrub_bytes(scrubbed) is scrubbed


def test_a_token_in_bytes_that_are_no_json_is_hidden_too():
    assert Redactor().scrub_bytes(f"said ghp_{BODY} \udcff".encode(errors="surrogateescape")) == (
        f"said {MASK} ".encode() + b"\xff"
    )


def test_what_only_resembles_a_token_is_stored_as_it_is():
    for text in [
        *(
            "da39a3ee5e6b4b0d3255bfef95601890afd80709",
            "123e4567-e89b-12d3-a456-426614174000",
            "task-management-of-things",
        ),
        *("feature/risk-assessment0123456789abcdef", "adw/1a2b3c4d-disk-usage-of-the-machine", "highs_and_lows_of_it"),
        *(
            "https://github.com/acme/shop/issues/42?x=1#c",
            "ssh://git@github.com:22/acme/shop",
            "http://localhost:8000/",
        ),
        *("mail bob@example.com or see https://example.com: it says a@b", "git@github.com:acme/shop.git", "eyJ"),
        *("-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----", "AKIA", "xoxo-", "password=hunter2"),
    ]:
        payload = json.dumps({"note": text}).encode()

        assert Redactor().scrub_bytes(payload) is payload, text


def test_a_line_made_of_starts_of_tokens_does_not_take_long():
    payload = json.dumps({"note": "-eyJ" * 50_000 + "://" * 50_000 + "sk-" * 50_000}).encode()

    assert Redactor().scrub_bytes(payload) is payload


# --- environment -----------------------------------------------------------------------------------------------


def test_the_environment_gives_its_secrets_and_not_its_switches_numbers_and_paths():
    env = {
        "GITHUB_TOKEN": PLAIN_SECRET,
        "NPM_TOKEN": "true",
        "SOME_TOKEN": "1234567",
        "OTHER_TOKEN": "abc",
        "DB_PASSWORD": "postgres",
        "SSH_PRIVATE_KEY": "/home/someone/.ssh/id_ed25519",
        "AWS_SECRET_ACCESS_KEY": "/wJalrXUtnFEMIK7MDENG1bPxRfiCY",
        "DATABASE_URL": "postgresql://adw:dbpass-4711@db.example:5432/adw",
        "HOME": "/home/someone",
    }
    redactor = Redactor.from_environment(env)

    text = " ".join(env.values())
    assert redactor.redact_text(text) == (
        f"{MASK} true 1234567 abc postgres /home/someone/.ssh/id_ed25519 {MASK} "
        f"postgresql://adw:{MASK}@db.example:5432/adw /home/someone"
    )
    assert redactor.redact_text("dbpass-4711") == MASK


@pytest.mark.parametrize(
    "drawn",
    ["/M1lWIXpGqYDe/t/rnyGGQsY861Zy1/aKf9xLm2", "/x9Y+aB/7cD2/eF+g3H/Ij4Kl5M/n6Op7Q", "~/a8#kD9!sQ/2%xW7&v"],
)
def test_what_was_drawn_is_a_secret_though_it_begins_as_a_path_does(drawn):
    assert Redactor.from_environment({"AWS_SECRET_ACCESS_KEY": drawn}).redact_text(f"use {drawn}") == f"use {MASK}"


@pytest.mark.parametrize(
    "path",
    [
        "/run/secrets/kubernetes.io/serviceaccount/token",
        "/Users/Alice/Projects2/KeyFile.json",
        "/var/lib/A1/B2/C3/token",
        "~/.config/gh/hosts.yml",
        "/tmp/pytest-of-ada/pytest-173/test_home0/home",
    ],
)
def test_the_path_of_a_file_with_secrets_is_none(path):
    assert Redactor.from_environment({"TOKEN_FILE": path, "MY_TOKEN": path}).redact_text(path) == path


def test_values_that_are_known_anyway_are_hidden_whatever_the_environment_says():
    redactor = Redactor.from_environment({"NPM_TOKEN": PLAIN_SECRET}, known_values=["dbpass-4711"])

    assert redactor.redact_text(f"{PLAIN_SECRET} dbpass-4711") == f"{MASK} {MASK}"


def test_a_password_that_is_a_word_of_documents_does_not_make_them_unreadable():
    """Somebody's DB_PASSWORD may be `building`; a document whose state is `[redacted]` could not be worked on."""
    words = {name for part in _parts_of_documents() for name in part.model_fields}
    words |= {field.alias for part in _parts_of_documents() for field in part.model_fields.values() if field.alias}
    nouns = (PhaseSpec, Gate, Timeouts, RetrySpec, StepSpec, LoopSpec, RetryRule, SinkSpec, NextRule)
    words |= {item.name for noun in nouns for item in dataclasses.fields(noun)}
    words |= {
        *workflow_model.FAILURE_POLICIES,
        *workflow_model.LOOP_MODES,
        *workflow_model.SINK_TOOLS,
        *workflow_model.SINK_MODES,
        *workflow_model.COLLECT_STRATEGIES,
    }
    words |= {key for keys in workflow_model.INPUTS_OF_TOOL.values() for key in keys} | {
        workflow_model.ON_ERROR,
        workflow_model.ON_SUCCESS,
    }
    words |= {state.value for state in WorkflowState} | set(RUNNERS)
    words |= {"queued", "running", "retry_wait", "waiting", "complete", "failed", "skipped", "interrupted", "suspended"}
    env = {f"SECRET_{number}": word for number, word in enumerate(sorted(words))}
    payload = json.dumps(sorted(words)).encode()

    assert Redactor.from_environment(env).scrub_bytes(payload) == payload, "name the new word in _WORDS_OF_DOCUMENTS"


def _parts_of_documents(base=document.Part):
    return [base, *(part for one in base.__subclasses__() for part in _parts_of_documents(one))]


# --- streams ---------------------------------------------------------------------------------------------------


def stream(redactor, chunks, **options):
    reader = StreamRedactor(redactor, **options)

    return [*(reader.feed(chunk) for chunk in chunks), reader.close()]


def test_complete_lines_come_out_at_once():
    assert stream(Redactor(), ["one\ntw", "o\n", "three"]) == ["one\n", "two\n", "", "three"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64])
def test_a_stream_gives_the_same_as_the_whole_text(size):
    key = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----"
    broken = f"{PLAIN_SECRET[:9]}\n{PLAIN_SECRET[9:]}"
    text = f"a {PLAIN_SECRET} b\npassword=hunter2 x\n{key}\nz {broken}\nend"
    redactor = Redactor([PLAIN_SECRET])
    chunks = [text[at : at + size] for at in range(0, len(text), size)]

    assert "".join(stream(redactor, chunks)) == redactor.redact_text(text)


def test_a_line_that_ends_like_a_secret_begins_waits_for_the_next_one():
    redactor = Redactor([PLAIN_SECRET, "eight-ch"])
    reader = StreamRedactor(redactor)

    assert reader.feed(f"first\nx {PLAIN_SECRET[:9]}\n") == "first\n"
    assert reader.feed("harmless\n") == f"x {PLAIN_SECRET[:9]}\nharmless\n"
    assert reader.feed("eight\n") == ""
    assert reader.feed("-ch!\n") == f"{MASK}!\n"


def test_an_endless_line_is_let_out_in_parts_without_its_secrets():
    redactor = Redactor([PLAIN_SECRET])
    text = "".join(f"item {number} {PLAIN_SECRET} password=x{number} " for number in range(2000))
    reader = StreamRedactor(redactor, limit=2048)
    out = []
    for at in range(0, len(text), 100):
        out.append(reader.feed(text[at : at + 100]))
        assert len(reader._held) <= 2048 + 100
    out.append(reader.close())

    assert "".join(out) == redactor.redact_text(text)


def test_an_endless_secret_is_dropped_up_to_the_next_line():
    reader = StreamRedactor(Redactor(), limit=2048)
    out = [reader.feed("password=" + "a" * 1000), reader.feed("b" * 2000), reader.feed("c" * 5000)]
    assert len(reader._held) <= 2048

    out += [reader.feed("ccc\nnext "), reader.feed("line\n"), reader.close()]
    assert "".join(out) == f"password={MASK}\nnext line\n"


def test_a_key_that_never_ends_is_dropped_line_by_line():
    reader = StreamRedactor(Redactor(), limit=2048)
    out = [reader.feed("-----BEGIN PRIVATE KEY-----\n")]
    out += [reader.feed("k" * 63 + "\n") for _ in range(100)]

    assert len(reader._held) <= 2048 + 64
    assert "".join(out).startswith(MASK)


# --- time ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    [
        *("a", " ", "\\", "%41", "\x1b[0", "=\n", "://a:", "://a:b@"),
        *("token=", "token:", "token ", 'password="', "password='x\n", 'token=\\"', "password:{", "--password "),
        *("eyJaaaaaaaaaaa-", "eyJaaaaaaaaaaa.", "AKIAAAAAAAAAAAAAAAAA ", "bearer ", "-----BEGIN PRIVATE KEY-----"),
        *("SG.aaaaaaaaaaaaaaaa", PLAIN_SECRET),
        *("aghp_aaaaaaaaaa", "ghp_", "\\nghp_aaaaaaaaaa", "%25", "%250A", "\\u001b[0", "&amp;", "&#0", "\\n", "\\x41"),
        *("QUtJQUFB", "Z2hwX", "eyJ", "basic AAAA", "AKIA", "hooks.slack.com/services/", "0123456789:AA"),
    ],
)
def test_a_hostile_line_takes_linear_time(unit, repeat):
    """Quadratic work on 200,000 characters would take minutes: the time-out is the assertion."""
    line = unit * (repeat(200_000, 1_000_000) // len(unit))

    Redactor([PLAIN_SECRET]).redact_text(line)
    Redactor([PLAIN_SECRET]).redact_text('password="' + line)


def test_names_are_judged_alike_however_many_there_were_before():
    redactor = Redactor([SECRET])
    value = {"api_key": "x1y2z3", SECRET: "plain", "count": 7}
    first = redactor.redact(value)

    redactor.redact({f"name{number}": number for number in range(2 * redaction_redactor._MOST_SEEN)})

    assert first == redactor.redact(value) == {"api_key": MASK, MASK: "plain", "count": 7}
    assert len(redactor._names) <= redaction_redactor._MOST_SEEN


def test_the_fields_of_a_log_line_are_redacted_as_the_same_object_is():
    fields = {"name": "GITHUB_TOKEN", "value": "x", "password": "y", "text": SECRET, "n": 5, "deep": {"token": "z"}}
    redactor = Redactor([SECRET])

    assert redactor.redact_fields(fields) == redactor.redact(fields)


# --- what people say -------------------------------------------------------------------------------------------


def test_what_people_say_is_stored_without_known_values_their_parts_and_tokens():
    redactor = Redactor(["correct-horse-battery-staple"])

    assert redactor.scrub_text("use correct-horse-battery-staple") == "use [redacted]"
    assert redactor.scrub_text("use correct-horse-batt") == "use [redacted]"
    assert redactor.scrub_text("use ghp_0123456789abcdefghij") == "use [redacted]"


def test_what_people_say_is_not_changed_because_of_a_name():
    assert Redactor().scrub_text("set password=hunter2 in the test") == "set password=hunter2 in the test"


def test_a_value_with_other_letters_is_found_reversed_in_json():
    secret = "Grüße-an-alle-Häuser"

    assert "Häus"[::-1] not in Redactor([secret]).redact_text(json.dumps({"x": secret[::-1]}))
    assert Redactor([secret]).redact_text(json.dumps(secret[::-1])) == '"[redacted]"'


def test_json_that_people_say_is_stored_without_known_values_and_their_parts():
    redactor = Redactor(["correct-horse-battery-staple"])
    said = {"reason": "use correct-horse-batt", "more": ["é correct-horse-battery-staple", 7, None]}

    scrubbed = redactor.scrub_json(json.dumps(said))

    assert json.loads(scrubbed) == {"reason": "use [redacted]", "more": ["é [redacted]", 7, None]}
    assert scrubbed.isascii()
    assert redactor.scrub_json(json.dumps("Zoë")) == json.dumps("Zoë")
