"""The house: everything adw can do, without knowing that it has doors."""
