"""The product's settings, and this package as one more app with a workflow and an agent."""

from sagsite.settings import *  # noqa: F403
from sagsite.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.bench"]
