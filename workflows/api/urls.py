"""The routes under /api/v1."""

from django.urls import path, re_path, register_converter
from django.urls.converters import StringConverter

from workflows.api.views import bookings, jobs, openapi, steps
from workflows.api.views.unknown import Unknown


class StepName(StringConverter):
    """A step's name, an undo's (`hotel.undo`) included."""

    regex = "[a-z][a-z0-9_.:]{0,79}"


register_converter(StepName, "step")

urlpatterns = [
    path("bookings", bookings.BookingList.as_view()),
    path("bookings/<uuid:job_id>", bookings.BookingDetail.as_view()),
    path("jobs", jobs.JobList.as_view()),
    path("jobs/<uuid:job_id>", jobs.JobDetail.as_view()),
    path("jobs/<uuid:job_id>/events", jobs.JobEvents.as_view()),
    path("jobs/<uuid:job_id>/cancellation", jobs.JobCancellation.as_view()),
    path("jobs/<uuid:job_id>/retries", jobs.JobRetries.as_view()),
    path("jobs/<uuid:job_id>/pause", jobs.JobPause.as_view()),
    path("jobs/<uuid:job_id>/resumption", jobs.JobResumption.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>", steps.StepDetail.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>/cancellation", steps.StepCancellation.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>/retries", steps.StepRetries.as_view()),
    path("schema", openapi.Schema.as_view(), name="api-schema"),
    path("docs", openapi.Docs.as_view(), name="api-docs"),
    re_path("", Unknown.as_view()),
]
