"""The door for people at a terminal."""
