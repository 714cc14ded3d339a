"""Where each face of the system begins."""

from django.contrib import admin
from django.urls import include, path

from supervisor import health, metrics

urlpatterns = [
    path("", include("supervisor.console.urls")),
    path("api/v1/", include("supervisor.api.urls")),
    path("api/v1/", include("workflows.api.urls")),
    path("health/live", health.live),
    path("health/ready", health.ready),
    path("metrics", metrics.metrics),
    path("admin/", admin.site.urls),
]
