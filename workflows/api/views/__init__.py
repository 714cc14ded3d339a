"""One file for each noun; a verb is a noun that is POSTed to."""
