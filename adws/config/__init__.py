"""Settings: one table, read from command line, environment and `adw.toml`."""
