"""A schema that even a model without sense fills soon."""

SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["word", "count"],
    "additionalProperties": False,
}
