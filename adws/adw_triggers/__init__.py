"""What starts work from outside: the webhook and the cron."""
