"""metering."""
