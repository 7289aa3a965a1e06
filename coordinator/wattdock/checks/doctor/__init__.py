"""checks/doctor."""
