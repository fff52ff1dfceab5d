"""Where the results of calls are saved."""
