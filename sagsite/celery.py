"""The Celery application: `celery -A sagsite worker`, `celery -A sagsite beat`.

Its messages are doorbells. Work, times and results are rows in PostgreSQL, so a message that is lost or doubled does
no harm, and nothing here asks the broker to keep anything.
"""

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init

from sagsite.launch import die_with_parent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sagsite.settings")

app = Celery("sagsite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_process_init.connect
def end_with_main_process(**_: Any) -> None:
    """A pool child whose main process was killed would go on working unseen: it ends at once, its lease runs out."""
    die_with_parent()
