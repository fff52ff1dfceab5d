"""The capabilities of adw, one package or module each."""
