"""Work on a schedule, and notifications."""
