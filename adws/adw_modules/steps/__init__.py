"""Steps of a phase: executions, iterations, tools and sinks."""
