"""The dashboard: pages for people, made on the server, readable without a script."""
