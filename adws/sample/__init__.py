"""The sample that `adw demo` makes: the texts of its repository, and the scripted agent that works on it."""
