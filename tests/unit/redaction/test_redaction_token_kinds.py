"""Each kind of token that has a rule of its own: hidden by that rule, and by no other."""

from __future__ import annotations

import re

from adws.adw_modules.redaction import token_shapes
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor

A1 = "a1B2c3D4e5F6g7H8"
HEX = "0123456789abcdef" * 3

#: Text -> what is left of it.
KINDS = {
    "glptt-" + A1: MASK,
    "sk-or-v1-" + A1: MASK,
    "xapp-1-A0123456789": MASK,
    "https://discord.com/api/webhooks/123456789/" + A1: f"https://discord.com/api/webhooks/123456789/{MASK}",
    "https://hooks.slack.com/triggers/" + A1: f"https://hooks.slack.com/triggers/{MASK}",
    "GOCSPX-" + A1: MASK,
    "rk_test_" + A1: MASK,
    "dop_v1_" + HEX: MASK,
    "shpat_" + HEX: MASK,
    "dckr_pat_" + A1: MASK,
    "hvs." + A1 * 2: MASK,
    "gsk_" + A1 * 2: MASK,
    "xai-" + A1 * 2: MASK,
    "pplx-" + A1 * 2: MASK,
    "lin_api_" + A1: MASK,
    "ATATT3" + A1: MASK,
    "https://x.example/f?sv=1&sig=" + A1: f"https://x.example/f?sv=1&sig={MASK}",
}


def test_a_token_of_this_kind_is_hidden():
    for text, clean in KINDS.items():
        assert Redactor().redact_text(f"see {text} there") == f"see {clean} there", text


def test_one_rule_alone_knows_it():
    for text in KINDS:
        matching = [rule for rule in token_shapes.SHAPES if re.search(rule.pattern, text)]

        assert len(matching) == 1, text
        assert re.search(matching[0].hint, text), "else the rule is never tried"
