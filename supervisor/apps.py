from django.apps import AppConfig


class SupervisorConfig(AppConfig):
    name = "supervisor"
    label = "sag_supervisor"
    verbose_name = "Supervisor"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from supervisor import checks  # noqa: F401  (registers the system checks)
