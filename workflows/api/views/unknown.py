"""Addresses below the API that lead nowhere: answered as a problem too, before anybody is asked who they are."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.views import APIView


@extend_schema(exclude=True)
class Unknown(APIView):
    authentication_classes = ()
    permission_classes = ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Every method ends here."""
        raise NotFound("There is nothing at this address; /api/v1/docs has all that there are.")
