"""The supervisor's routes under /api/v1."""

from django.urls import path

from supervisor.api import views

urlpatterns = [
    path("agents/<str:name>/resumption", views.AgentResumption.as_view()),
    path("incidents", views.IncidentList.as_view()),
    path("incidents/<int:incident_id>", views.IncidentDetail.as_view()),
    path("incidents/<int:incident_id>/cancellation", views.IncidentCancellation.as_view()),
    path("workers", views.WorkerList.as_view()),
    path("workers/<str:name>/draining", views.WorkerDraining.as_view()),
    path("queues/<str:queue>/draining", views.QueueDraining.as_view()),
    path("sweeps", views.SweepList.as_view()),
]
