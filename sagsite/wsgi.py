"""The WSGI application that gunicorn serves."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sagsite.settings")
os.environ["SAG_ROLE"] = "web"  # before the settings load: only the web process has a connection pool

application = get_wsgi_application()
