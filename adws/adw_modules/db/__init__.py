"""The room of the database: what workflows share, and the home or the copy of their documents."""
