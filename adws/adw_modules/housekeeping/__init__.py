"""Inventory, garbage collection, adoption, verification, retention."""
