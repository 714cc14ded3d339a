"""Django's settings.

Every variable of the environment is read here, `.env` beside manage.py included. A variable that is unset or empty
means the default, and the defaults make one machine work by itself: PostgreSQL and Valkey run embedded.
"""

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import environ
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from sagsite.embedded.postgres import database_url
from sagsite.embedded.valkey import broker_url
from sagsite.home import Home
from workflows.conf import Defaults

BASE_DIR = Path(__file__).resolve().parent.parent

VARIABLES = (
    *("DATABASE_URL", "CELERY_BROKER_URL", "SECRET_KEY", "ALLOWED_HOSTS", "CSRF_TRUSTED_ORIGINS", "DEBUG"),
    *("HOST", "PORT", "SIMULATORS_PORT", "SAG_HOME", "SAG_ROLE", "SAG_SETTINGS"),
    *("SAG_NOTIFY", "EMAIL_URL", "DEFAULT_FROM_EMAIL", "SAG_WEBHOOKS", "SAG_APPRISE", "SAG_URL"),
)

env = environ.Env()
environ.Env.read_env(BASE_DIR / ".env")
for name in VARIABLES:
    if os.environ.get(name) == "":
        del os.environ[name]  # empty means unset, for the processes we start too

HOME = Home(Path(env.str("SAG_HOME", default=str(BASE_DIR / ".sag"))).expanduser().resolve())
ROLE = env.str("SAG_ROLE", default="command")  # web, agents, supervisor, beat: set by the runner and by wsgi.py

# --- who may talk to us -------------------------------------------------------------------------------------------

EMBEDDED_DATABASE = "DATABASE_URL" not in os.environ
EMBEDDED_BROKER = "CELERY_BROKER_URL" not in os.environ

if "SECRET_KEY" in os.environ:
    SECRET_KEY = env.str("SECRET_KEY")
elif EMBEDDED_DATABASE:
    SECRET_KEY = HOME.secret_key()
else:
    raise ImproperlyConfigured(
        "DATABASE_URL is set but SECRET_KEY is not: set SECRET_KEY to a long random text, the same for every process."
    )

DEBUG = env.bool("DEBUG", default=False)
BIND_HOST = env.str("HOST", default="127.0.0.1")
BIND_PORT = env.int("PORT", default=8000)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]", BIND_HOST])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

# --- what the project is made of ----------------------------------------------------------------------------------

INSTALLED_APPS = [
    "sagsite.apps.SagsiteConfig",
    "workflows.apps.WorkflowsConfig",
    "agents.apps.AgentsConfig",
    "supervisor.apps.SupervisorConfig",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "knox",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "axes",
    "csp",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "sagsite.urls"
WSGI_APPLICATION = "sagsite.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

STATIC_URL = "/static/"
STATICFILES_DIRS = [folder for folder in [BASE_DIR / "static"] if folder.exists()]
WHITENOISE_USE_FINDERS = True  # served from where they lie: no collecting step between a clone and its first page

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- the database -------------------------------------------------------------------------------------------------

# Every limit is below the 10 seconds of a lease, so that no connection of a frozen or vanished process holds a lock
# for longer than the work it had claimed would have been its own.
SESSION = {
    "synchronous_commit": "on",
    "lock_timeout": "3s",
    "statement_timeout": "8s",
    "idle_in_transaction_session_timeout": "8s",
}
CONNECTION = {
    "application_name": f"sag {ROLE}",
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 8000,
    "prepare_threshold": 2,  # from its third run on, a connection's statement is prepared
}

WEB_WORKERS = 2
WEB_THREADS = 32
WEB_CONNECTIONS = 16  # a web process's pool: below its threads, since most of them wait for a browser, not for a row


def database() -> dict[str, Any]:
    """The one database, with the connection settings that fit this process's role."""
    if EMBEDDED_DATABASE:
        found = env.db_url_config(HOME.read_state().get("database_url") or database_url(HOME.sockets()))
    else:
        found = env.db("DATABASE_URL")
    options = {**CONNECTION, **found.get("OPTIONS", {})}
    # Prepared plans live as long as their connection. One made while a table was all but empty would read it whole for
    # ever; the engine's own statements each have an index, so its processes never want that.
    planning = {"enable_seqscan": "off", "jit": "off"} if ROLE in ("agents", "supervisor") else {}
    session = " ".join(f"-c {name}={value}" for name, value in (SESSION | planning).items())
    options["options"] = " ".join(filter(None, [session, options.get("options", "")]))
    found["OPTIONS"] = options
    if ROLE == "web":
        # The pool waits longer after each failed attempt, as long as the database is away. A short patience makes the
        # next request begin anew, so that the site is back a moment after its database.
        options["pool"] = {"min_size": 2, "max_size": WEB_CONNECTIONS, "timeout": 5, "reconnect_timeout": 2}
        return {**found, "ENGINE": "sagsite.pooled", "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}
    return {**found, "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}


DATABASES = {"default": database()}

# --- the engine ---------------------------------------------------------------------------------------------------

SAG = env.json("SAG_SETTINGS", default={})  # overrides of the table of defaults in workflows/conf.py
SAG_AGENTS = SAG.pop("agents", {})  # overrides of what agents declare, for example {"hotel": {"lands_within": 60}}

# --- Celery: doorbells only ---------------------------------------------------------------------------------------

if EMBEDDED_BROKER:
    CELERY_BROKER_URL = HOME.read_state().get("broker_url") or broker_url(HOME.sockets())
else:
    CELERY_BROKER_URL = env.str("CELERY_BROKER_URL")

CELERY_TASK_DEFAULT_QUEUE = "agents"
CELERY_TASK_ROUTES = {"supervisor.*": {"queue": "supervisor"}}
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_PUBLISH_RETRY = False
CELERY_TASK_STORE_ERRORS_EVEN_IF_IGNORED = False
CELERY_TIMEZONE = TIME_ZONE

# A ring is not worth waiting for: a broker that is away or silent costs the caller a moment, and the sweep rings again.
CELERY_BROKER_CONNECTION_TIMEOUT = 0.5
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = {
    "max_retries": 0,
    "interval_start": 0,
    "connect_retries_timeout": 0.5,
}
if CELERY_BROKER_URL.startswith("redis"):
    CELERY_BROKER_TRANSPORT_OPTIONS |= {
        "socket_timeout": 0.5,
        "socket_connect_timeout": 0.5,
        "socket_keepalive": True,
        "health_check_interval": 5,
        # A doorbell that died with its worker is rung again after five seconds; a copy of each would be kept for an hour.
        "ack_emulation": False,
    }
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # a worker waits for its broker for ever

CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_SEND_TASK_EVENTS = False
# Remote control stays on although nothing uses it: a worker without that mailbox does not notice that its broker is gone,
# and stays deaf when it is back.
CELERY_WORKER_HIJACK_ROOT_LOGGER = True
CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_DB_REUSE_MAX = 1_000_000  # else Celery closes the database connection before and after every task

SWEEP_INTERVAL = float(SAG.get("sweep", Defaults.sweep))  # seconds
RING_INTERVAL = 1.0
CELERY_BEAT_SCHEDULE = {
    "sweep": {
        "task": "supervisor.tasks.sweep",
        "schedule": timedelta(seconds=SWEEP_INTERVAL),
        "options": {"expires": SWEEP_INTERVAL},  # an outage must not leave thousands of them behind
    },
    "prune": {
        "task": "supervisor.tasks.prune",
        "schedule": timedelta(minutes=1),
        "options": {"expires": 60},
    },
    "ring due steps": {
        "task": "supervisor.tasks.ring_due",
        "schedule": timedelta(seconds=RING_INTERVAL),
        "options": {"expires": RING_INTERVAL},
    },
    "note needs": {
        "task": "supervisor.tasks.note_needs",
        "schedule": timedelta(seconds=5),
        "options": {"expires": 5},
    },
    "tell people": {
        "task": "supervisor.tasks.tell_people",
        "schedule": timedelta(seconds=30),
        "options": {"expires": 30},
    },
    "open due ticks": {
        "task": "supervisor.tasks.open_due",
        "schedule": timedelta(seconds=RING_INTERVAL),
        "options": {"expires": RING_INTERVAL},
    },
}

# --- word to people -----------------------------------------------------------------------------------------------


def channels_of(name: str) -> Any:
    """JSON that may hold secrets: what is wrong with it is said without them."""
    try:
        return env.json(name, default={})
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} is no JSON: {error}") from None


SAG_NOTIFY = env.list("SAG_NOTIFY", default=[])  # e-mail addresses
vars().update(env.email("EMAIL_URL", default="smtp://localhost:25"))
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", default="sag@localhost")
SAG_WEBHOOKS = channels_of("SAG_WEBHOOKS")  # {"on-duty": {"url": "https://…", "secrets": ["whsec_…"]}}
SAG_APPRISE = channels_of("SAG_APPRISE")  # {"chat": "slack://…"}
SAG_URL = env.str("SAG_URL", default="")  # where people find the console, for the links in what they are told

# --- people and client programs -----------------------------------------------------------------------------------

AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = LOGIN_URL
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_VERBOSE = False

KNOX_TOKEN_MODEL = "sag_workflows.ApiToken"
REST_KNOX = {"TOKEN_MODEL": KNOX_TOKEN_MODEL, "AUTH_HEADER_PREFIX": "Bearer", "TOKEN_TTL": None, "TOKEN_PREFIX": "sag_"}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["workflows.api.authentication.BearerTokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "workflows.api.problems.handler",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Sag",
    "DESCRIPTION": "Start jobs, follow them, undo them.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

# --- what browsers are told ---------------------------------------------------------------------------------------

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "manifest-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"

BEHIND_TLS = any(origin.startswith("https://") for origin in CSRF_TRUSTED_ORIGINS)
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BEHIND_TLS

# --- the simulators -----------------------------------------------------------------------------------------------

SIMULATORS_PORT = env.int("SIMULATORS_PORT", default=8100)
SIMULATORS_URL = f"http://127.0.0.1:{SIMULATORS_PORT}"


def is_fault(record: logging.LogRecord) -> bool:
    return getattr(record, "status_code", None) != 503


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    # "Not ready" is an answer to a probe, not a fault.
    "filters": {"faults": {"()": "django.utils.log.CallbackFilter", "callback": is_fault}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "axes": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},  # a line for each doorbell would bury what matters
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.worker.request": {"level": "WARNING"},  # nor one for each sweep that came too late
        "django.request": {"filters": ["faults"]},
        "httpx2": {"level": "WARNING"},
    },
}
CELERY_WORKER_LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
CELERY_WORKER_TASK_LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
