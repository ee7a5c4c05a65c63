"""What runs on the operator's or CI machine: from spec to published image."""
