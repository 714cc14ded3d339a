"""The routes under /api/v1."""

from django.urls import path, re_path, register_converter
from django.urls.converters import StringConverter

from workflows.api.views import agents, bookings, callbacks, jobs, openapi, schedules, steps, workflows
from workflows.api.views.unknown import Unknown


class StepName(StringConverter):
    """The address of a step: its name, an undo's (`hotel.undo`), an item's (`deploy:3`)."""

    regex = "[a-z][a-z0-9_.:]{0,119}"


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
    path("jobs/<uuid:job_id>/compensation", jobs.JobCompensation.as_view()),
    path("jobs/<uuid:job_id>/signals/<step:name>", jobs.JobSignal.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>", steps.StepDetail.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>/cancellation", steps.StepCancellation.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>/retries", steps.StepRetries.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>/skip", steps.StepSkip.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>/result", steps.StepResult.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>/verdict", steps.StepVerdict.as_view()),
    path("jobs/<uuid:job_id>/steps/<step:step>/items", steps.StepItems.as_view()),
    path("callbacks/<str:token>", callbacks.CallbackDetail.as_view()),
    path("workflows", workflows.WorkflowList.as_view()),
    path("workflows/<str:name>", workflows.WorkflowDetail.as_view()),
    path("agents", agents.AgentList.as_view()),
    path("agents/<str:name>", agents.AgentDetail.as_view()),
    path("schedules", schedules.ScheduleList.as_view()),
    path("schedules/preview", schedules.SchedulePreview.as_view()),
    path("schedules/<uuid:schedule_id>", schedules.ScheduleDetail.as_view()),
    path("schedules/<uuid:schedule_id>/ticks", schedules.ScheduleTicks.as_view()),
    path("schedules/<uuid:schedule_id>/triggers", schedules.ScheduleTriggers.as_view()),
    path("schedules/<uuid:schedule_id>/backfills", schedules.ScheduleBackfills.as_view()),
    path("schema", openapi.Schema.as_view(), name="api-schema"),
    path("docs", openapi.Docs.as_view(), name="api-docs"),
    re_path("", Unknown.as_view()),
]
