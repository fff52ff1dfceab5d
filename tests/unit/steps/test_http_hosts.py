"""Which hosts the HTTP tool may call."""

from __future__ import annotations

import pytest

from adws.adw_modules.steps.http_client import host_matches


@pytest.mark.parametrize(
    ("host", "name", "is_meant"),
    [
        ("a.example.com", "*.example.com", True),
        ("a.b.example.com", "*.example.com", True),
        ("example.com", "*.example.com", False),
        ("badexample.com", "*.example.com", False),
        ("example.com", "example.com", True),
        ("a.example.com", "example.com", False),
    ],
)
def test_a_star_means_the_hosts_below(host, name, is_meant):
    assert host_matches(host, name) is is_meant
