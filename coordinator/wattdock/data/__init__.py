"""Files that travel with wattdock: bundled prompts and model shapes. No code."""
