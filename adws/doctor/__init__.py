"""`adw doctor` and `adw init`."""
