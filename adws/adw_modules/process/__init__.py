"""Processes: started, watched and ended, each known by more than its pid."""
