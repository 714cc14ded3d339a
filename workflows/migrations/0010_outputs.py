from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("sag_workflows", "0005_workers"),
    ]

    operations = [
        migrations.AddField(
            model_name="agent",
            name="outputs",
            field=models.JSONField(db_default=models.Value({}, models.JSONField())),
        ),
    ]
