"""Task files in the format of lm-evaluation-harness, read without the library: fields, templates, rows, filters."""
