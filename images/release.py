"""From evidence to release document: what a build writes into the manifest."""
