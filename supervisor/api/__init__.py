"""The face of the supervisor for client programs: its own record, incidents, and how an outage is ended by hand."""
