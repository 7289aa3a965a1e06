"""Publication bundles: results that a stranger can check and run again, in one file."""
