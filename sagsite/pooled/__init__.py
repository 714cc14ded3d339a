"""Django's PostgreSQL backend, with a pool that is whole again the moment its server is."""
