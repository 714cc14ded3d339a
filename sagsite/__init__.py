"""The wiring of the project: settings, URLs, the Celery app, the embedded servers and the one-command runner."""

from sagsite.celery import app as celery_app

__all__ = ["celery_app"]
