from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("sag_workflows", "0009_worker_drain"),
    ]

    operations = [
        migrations.AddField(
            model_name="agent",
            name="outputs",
            field=models.JSONField(db_default=models.Value({}, models.JSONField())),
        ),
        migrations.AddIndex(
            model_name="step",
            index=models.Index(
                condition=models.Q(
                    ("held", False),
                    ("state", "NotStarted"),
                    ("waiting_for", 0),
                    models.Q(("limit_key", ""), _negated=True),
                ),
                fields=["limit_key", "queue", "run_after"],
                name="step_wants_key",
            ),
        ),
    ]
