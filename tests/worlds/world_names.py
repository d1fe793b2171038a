"""Names that all worlds use."""

NAMESPACES = ("red", "blue", "green")
TOPICS = ("a", "b")
NODE_TOPICS = ("n", "m")
ENDS = "ends"
