"""The prompts that come with adw, one file each."""
