from django.apps import AppConfig


class WorkflowsConfig(AppConfig):
    name = "workflows"
    label = "sag_workflows"
    verbose_name = "Workflows"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from workflows.plans.registry import autodiscover

        autodiscover()
