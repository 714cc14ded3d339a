"""PostgreSQL and Valkey on this machine: real servers from wheels, run as ordinary foreground children."""
