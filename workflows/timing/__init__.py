"""When jobs are due: cron expressions, intervals, calendars, what is made up for after an outage. Knows no database."""
