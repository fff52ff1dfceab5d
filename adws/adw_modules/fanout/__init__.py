"""Steps whose calls are spread over workers."""
