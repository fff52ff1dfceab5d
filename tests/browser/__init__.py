"""Tests that open pages in a real Chromium: one browser and a few servers for all of them in a process."""
