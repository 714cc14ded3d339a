"""The OpenAPI document, and a page to try the API with."""

from csp.decorators import csp_update
from django.utils.decorators import method_decorator
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerSplitView


class Schema(SpectacularJSONAPIView):
    """OpenAPI 3.1, as JSON, for everybody."""

    authentication_classes = ()


# The page sets styles from its script; it runs no script but its own files.
@method_decorator(csp_update({"style-src": ["'unsafe-inline'"]}), name="dispatch")
class Docs(SpectacularSwaggerSplitView):
    """Swagger UI, from our own static files."""

    authentication_classes = ()
    url_name = "api-schema"
