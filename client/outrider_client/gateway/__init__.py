"""An OpenAI-compatible HTTP endpoint on the device. Needs the extra `gateway`."""
