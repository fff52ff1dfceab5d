"""Templates and conditions of steps."""
