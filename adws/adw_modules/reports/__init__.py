"""Reports, metrics, timelines and charts."""
