"""The console's addresses. What changes something is a POST to a noun."""

from django.urls import path

from supervisor.console import actions, login, views

urlpatterns = [
    path("", views.overview, name="overview"),
    path("login/", login.login, name="login"),
    path("logout/", login.logout, name="logout"),
    path("jobs/", views.jobs, name="jobs"),
    path("jobs/<uuid:job_id>", views.job, name="job"),
    path("jobs/<uuid:job_id>/live", views.live, name="job-live"),
    path("jobs/<uuid:job_id>/retries", actions.job_retries, name="job-retries"),
    path("jobs/<uuid:job_id>/cancellation", actions.job_cancellation, name="job-cancellation"),
    path("jobs/<uuid:job_id>/pause", actions.job_pause, name="job-pause"),
    path("jobs/<uuid:job_id>/resumption", actions.job_resumption, name="job-resumption"),
    path("jobs/<uuid:job_id>/steps/<path:name>/retries", actions.step_retries, name="step-retries"),
    path("jobs/<uuid:job_id>/steps/<path:name>/cancellation", actions.step_cancellation, name="step-cancellation"),
]
