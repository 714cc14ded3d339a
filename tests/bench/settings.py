"""The product's settings, and this package as one more app with a workflow and an agent."""

from sagsite.settings import *  # noqa: F403
from sagsite.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.bench"]

# The driver looks at the jobs all the time. Its plans are made while their table is empty, and must not read it whole.
DATABASES["default"]["OPTIONS"]["options"] += " -c enable_seqscan=off"
