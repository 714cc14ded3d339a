"""The supervisor's routes under /api/v1."""

from django.urls import path, register_converter
from django.urls.converters import IntConverter

from supervisor.api import attention, views


class RowId(IntConverter):
    """A number that a row can have."""

    regex = "[0-9]{1,18}"


register_converter(RowId, "id")

urlpatterns = [
    path("agents/<str:name>/resumption", views.AgentResumption.as_view()),
    path("attention", attention.Attention.as_view()),
    path("attention/causes", attention.CauseList.as_view()),
    path("attention/causes/<id:cause_id>", attention.CauseDetail.as_view()),
    path("attention/causes/<id:cause_id>/acknowledgement", attention.CauseAcknowledgement.as_view()),
    path("attention/causes/<id:cause_id>/assignment", attention.CauseAssignment.as_view()),
    path("attention/causes/<id:cause_id>/snooze", attention.CauseSnooze.as_view()),
    path("attention/causes/<id:cause_id>/notes", attention.CauseNotes.as_view()),
    path("incidents", views.IncidentList.as_view()),
    path("incidents/<id:incident_id>", views.IncidentDetail.as_view()),
    path("incidents/<id:incident_id>/cancellation", views.IncidentCancellation.as_view()),
    path("workers", views.WorkerList.as_view()),
    path("workers/<str:name>/draining", views.WorkerDraining.as_view()),
    path("queues/<str:queue>/draining", views.QueueDraining.as_view()),
    path("incidents/<id:incident_id>/acknowledgement", attention.IncidentAcknowledgement.as_view()),
    path("sweeps", views.SweepList.as_view()),
]
