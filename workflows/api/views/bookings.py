"""Trips, as the people who book them see them. Each is a job of TripBooking, with the same id."""

import uuid

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workflows.api import schema
from workflows.api.documents import BOOKINGS, BookingDocument, BookingPage
from workflows.api.idempotency import idempotent, key_of
from workflows.api.pagination import NEWEST_FIRST, page
from workflows.api.parsing import document_of
from workflows.api.permissions import actor, client_id, visible_job, visible_jobs
from workflows.api.views.base import READ, WRITE, ApiView, job_answer, unchanged, with_steps
from workflows.api.views.jobs import filtered
from workflows.catalog.trip import TripBooking, TripRequest
from workflows.models import Step


class BookingList(ApiView):
    scopes = {"GET": READ, "POST": WRITE}

    @extend_schema(
        operation_id="list_bookings", parameters=[*schema.FILTERS, *schema.PAGING], responses={200: BookingPage}
    )
    def get(self, request: Request) -> Response:
        """The bookings that this client may see, newest first."""
        jobs, filters = filtered(request, visible_jobs(request).filter(workflow=TripBooking.name))
        return page(request, jobs, filters, lambda found: with_steps(found, BookingDocument), NEWEST_FIRST)

    @extend_schema(
        operation_id="book_trip",
        parameters=[schema.KEY_REQUIRED],
        request=TripRequest,
        responses={202: BookingDocument},
    )
    @idempotent(required=True)
    def post(self, request: Request) -> Response:
        """Book a flight, a hotel and a car. The Idempotency-Key becomes the key of its job."""
        job = TripBooking.start(
            document_of(request),
            key=key_of(request),
            client_id=client_id(request),
            actor=actor(request),
        )
        return job_answer(job, BookingDocument, status=202, location=f"{BOOKINGS}/{job.pk}")


class BookingDetail(ApiView):
    scopes = {"GET": READ}

    @extend_schema(operation_id="get_booking", parameters=[schema.IF_NONE_MATCH], responses={200: BookingDocument})
    def get(self, request: Request, job_id: uuid.UUID) -> Response:
        """One booking: 200 in every state, with `Retry-After` while it is active and a receipt once it has ended."""
        job = visible_job(request, job_id, TripBooking.name)
        return unchanged(request, job.seq, Step.objects.of_plan().filter(job=job)) or job_answer(job, BookingDocument)
