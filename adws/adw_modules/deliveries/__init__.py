"""Webhook deliveries: stored with their run, authorised, carried out."""
