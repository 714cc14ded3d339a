"""The face for client programs: REST under /api/v1. Thin: every rule of the business is asked of the engine."""
