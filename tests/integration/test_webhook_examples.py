"""
Every sample of the official package of webhook payloads: signed it is read, and means what it should; unsigned not.

The package is not part of the repository; `.ci/run` installs it and says where in ADW_TEST_WEBHOOK_EXAMPLES.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Delivery
from adws.adw_triggers.delivery import read
from adws.adw_triggers.github_events import DeliveryRules
from adws.adw_triggers.http import Problem
from tests.delivery_cases import RULES, bytes_of, signed

VERSION = "7.6.1"
#: Each file of the package, and how many samples it has.
FILES = {
    "api.github.com": 329,
    "ghes-31": 49,
    "ghes-32": 49,
    "ghes-33": 50,
    "ghes-34": 124,
    "ghes-35": 125,
}


def samples(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    place = Path(os.environ.get("ADW_TEST_WEBHOOK_EXAMPLES", "")) / folder / "index.json"
    if not os.environ.get("ADW_TEST_WEBHOOK_EXAMPLES") or not place.is_file():
        pytest.skip(
            f"needs the samples: npm i --ignore-scripts @octokit/webhooks-examples@{VERSION} somewhere outside the "
            "repository, and set ADW_TEST_WEBHOOK_EXAMPLES to its node_modules/@octokit/webhooks-examples"
        )
    for event in json.loads(place.read_text()):
        for sample in event["examples"]:
            yield event["name"], sample


def rules_for(told: dict[str, Any]) -> DeliveryRules:
    """The rules of a home that works on the repository of the sample, and whose label the samples use."""
    name = (told.get("repository") or {}).get("full_name", "")
    return replace(RULES, repositories=(name.lower(),), label="bug")


@pytest.mark.parametrize(("folder", "count"), FILES.items())
def test_every_signed_sample_is_taken_and_every_unsigned_one_is_not(folder, count):
    seen = 0
    for event, sample in samples(folder):
        body = bytes_of(sample)
        headers = signed(event, body)
        made = read(headers, body, rules_for(sample))
        assert isinstance(made, Delivery), (event, made)
        assert made.reason
        del headers["X-Hub-Signature-256"]
        refused = read(headers, body, rules_for(sample))
        assert isinstance(refused, Problem)
        assert refused.status == 401
        seen += 1

    assert seen == count


def test_the_samples_mean_what_they_should():
    meant: Counter[tuple[str, str, str]] = Counter()
    for event, sample in samples("api.github.com"):
        body = bytes_of(sample)
        made = read(signed(event, body), body, rules_for(sample))
        wish = commands.from_json(made.request) if made.request else None
        meant[event, made.action, getattr(wish, "kind", made.verdict)] += 1

    assert {key: count for key, count in meant.items() if key[2] != "ignored"} == {
        ("issues", "labeled", "run"): 2,
        ("issues", "opened", "run"): 4,
        ("pull_request", "closed", "abandon"): 2,
    }
    assert meant["ping", "", "ignored"] == 4


@pytest.mark.parametrize(
    ("event", "action", "words", "meaning"),
    [
        ("issue_comment", "created", "/adw status", "status"),
        ("issue_comment", "created", "adw_plan_build_iso model_set heavy", "run"),
        ("issue_comment", "created", "> adw_plan_build_iso", "ignored"),
        ("issue_comment", "edited", "/adw status", "ignored"),
    ],
)
def test_real_comments_ask_for_what_their_words_say(event, action, words, meaning):
    result = [sample for name, sample in samples("api.github.com") if name == event and sample["action"] == action]
    assert result
    for sample in result:
        sample["comment"]["body"] = words
        sample["issue"]["state"] = "open"
        body = bytes_of(sample)
        made = read(signed(event, body), body, rules_for(sample))
        wish = commands.from_json(made.request) if made.request else None

        assert getattr(wish, "kind", made.verdict) == meaning
