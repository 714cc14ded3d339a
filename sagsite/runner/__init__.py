"""One command that starts everything, watches it, and stops it: `manage.py up`."""
