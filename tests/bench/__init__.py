"""The benchmark: this engine against a plain Celery chain and against PostgreSQL's own limit, paired in one run."""
