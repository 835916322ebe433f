"""Turns raw logs into the prepared format of `repro.data.schema`: one module a source, one common writer."""
