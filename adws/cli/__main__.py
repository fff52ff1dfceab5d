"""`python -m adws.cli`: the `adw` command, for processes that know the interpreter but not where scripts are."""

from __future__ import annotations

from adws.cli import main

if __name__ == "__main__":
    main.main()
