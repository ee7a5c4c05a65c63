"""What users wait for, measured."""
