"""Who signed a delivery."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from adws.adw_triggers import delivery
from adws.adw_triggers.delivery import why_not_signed
from tests.delivery_cases import sign

KEY = "It's a Secret to Everybody"
BODY = b"Hello, World!"
#: The test vector of GitHub's documentation.
SIGNATURE = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"


def test_the_published_vector_is_met():
    assert sign(KEY, BODY) == SIGNATURE
    assert why_not_signed({"x-hub-signature-256": SIGNATURE}, BODY, [KEY]) == ""


@pytest.mark.parametrize("secrets", [("old", KEY), (KEY, "new"), ("old", "new", KEY)])
def test_while_secrets_are_changed_each_of_them_is_good(secrets):
    assert why_not_signed({"x-hub-signature-256": SIGNATURE}, BODY, secrets) == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "not signed"),
        ({"x-hub-signature-256": ""}, "not signed"),
        ({"x-hub-signature": "sha1=" + "a" * 40}, "SHA-1 alone"),
        ({"x-hub-signature-256": SIGNATURE.removeprefix("sha256=")}, "not of the form"),
        ({"x-hub-signature-256": SIGNATURE.upper()}, "not of the form"),
        ({"x-hub-signature-256": "sha256=" + SIGNATURE[7:].upper()}, "not of the form"),
        ({"x-hub-signature-256": SIGNATURE[:-1]}, "not of the form"),
        ({"x-hub-signature-256": SIGNATURE + "0"}, "not of the form"),
        ({"x-hub-signature-256": SIGNATURE + "\n"}, "not of the form"),
        ({"x-hub-signature-256": "sha256=" + "\u00e9" * 64}, "not of the form"),
        ({"x-hub-signature-256": "sha256=" + "\u0660" * 64}, "not of the form"),
        ({"x-hub-signature-256": SIGNATURE[:-1] + "8"}, "does not fit"),
    ],
)
def test_whatever_is_wrong_with_a_signature_is_said(given, said):
    assert said in why_not_signed(given, BODY, [KEY])


def test_the_signature_of_other_bytes_does_not_fit():
    assert "does not fit" in why_not_signed({"x-hub-signature-256": SIGNATURE}, BODY + b" ", [KEY])


def test_without_a_secret_nothing_is_trusted():
    signed_with_nothing = "sha256=" + hmac.new(b"", BODY, hashlib.sha256).hexdigest()

    assert "ADW_WEBHOOK_SECRET" in why_not_signed({"x-hub-signature-256": signed_with_nothing}, BODY, [])


def test_every_secret_is_tried_in_constant_time_whichever_fits(monkeypatch):
    compared = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    class Watched:
        digest, compare_digest = staticmethod(hmac.digest), staticmethod(compare)

    monkeypatch.setattr(delivery, "hmac", Watched)
    for secrets in ([KEY, "other"], ["other", KEY], ["other", "another"]):
        compared.clear()
        why_not_signed({"x-hub-signature-256": SIGNATURE}, BODY, secrets)
        assert len(compared) == 2
