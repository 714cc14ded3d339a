"""The console's addresses. What changes something is a POST to a noun."""

from django.urls import path

from supervisor.console import actions, agents, login, schedules, sweeps, views

urlpatterns = [
    path("", views.overview, name="overview"),
    path("login/", login.login, name="login"),
    path("logout/", login.logout, name="logout"),
    path("attention/", views.attention, name="attention"),
    path("agents/", agents.agents, name="agents"),
    path("agents/<str:name>/trial", agents.agent_trial, name="agent-trial"),
    path("agents/<str:name>/resumption", agents.agent_resumption, name="agent-resumption"),
    path("sweeps/", sweeps.sweeps, name="sweeps"),
    path("schedules/", schedules.schedules, name="schedules"),
    path("schedules/new", schedules.schedule_new, name="schedule-new"),
    path("schedules/made", schedules.schedule_create, name="schedule-create"),
    path("schedules/<uuid:schedule_id>", schedules.schedule, name="schedule"),
    path("schedules/<uuid:schedule_id>/edit", schedules.schedule_edit, name="schedule-edit"),
    path("schedules/<uuid:schedule_id>/changes", schedules.schedule_change, name="schedule-changes"),
    path("schedules/<uuid:schedule_id>/backfill", schedules.schedule_backfill, name="schedule-backfill"),
    path("schedules/<uuid:schedule_id>/backfills", schedules.schedule_backfills, name="schedule-backfills"),
    path("schedules/<uuid:schedule_id>/pause", schedules.schedule_pause, name="schedule-pause"),
    path("schedules/<uuid:schedule_id>/resumption", schedules.schedule_resumption, name="schedule-resumption"),
    path("schedules/<uuid:schedule_id>/triggers", schedules.schedule_triggers, name="schedule-triggers"),
    path(
        "schedules/<uuid:schedule_id>/backfills/withdrawal",
        schedules.schedule_backfills_withdrawal,
        name="schedule-backfills-withdrawal",
    ),
    path("jobs/", views.jobs, name="jobs"),
    path("jobs/<uuid:job_id>", views.job, name="job"),
    path("jobs/<uuid:job_id>/live", views.live, name="job-live"),
    path("jobs/<uuid:job_id>/retries", actions.job_retries, name="job-retries"),
    path("jobs/<uuid:job_id>/cancellation", actions.job_cancellation, name="job-cancellation"),
    path("jobs/<uuid:job_id>/pause", actions.job_pause, name="job-pause"),
    path("jobs/<uuid:job_id>/resumption", actions.job_resumption, name="job-resumption"),
    path("jobs/<uuid:job_id>/undo", views.undo, name="undo"),
    path("jobs/<uuid:job_id>/compensation", actions.job_compensation, name="job-compensation"),
    path("jobs/<uuid:job_id>/signals/<path:name>", actions.job_signal, name="job-signal"),
    path("jobs/<uuid:job_id>/steps/<path:name>/retries", actions.step_retries, name="step-retries"),
    path("jobs/<uuid:job_id>/steps/<path:name>/cancellation", actions.step_cancellation, name="step-cancellation"),
    path("jobs/<uuid:job_id>/steps/<path:name>/skip", actions.step_skip, name="step-skip"),
    path("jobs/<uuid:job_id>/steps/<path:name>/result", actions.step_result, name="step-result"),
    path("jobs/<uuid:job_id>/steps/<path:name>/verdict", actions.step_verdict, name="step-verdict"),
    path("jobs/<uuid:job_id>/steps/<path:name>/", views.step_items, name="step-items"),
]
